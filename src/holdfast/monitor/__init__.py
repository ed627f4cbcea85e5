"""The state of a queue as values. The terminal, the web page and metrics read it here."""
