"""The fault harness: real servers, real workers, planted bugs. Not part of what is shipped."""
