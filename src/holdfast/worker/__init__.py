"""The worker. Its files are the steps of a job's life there."""
