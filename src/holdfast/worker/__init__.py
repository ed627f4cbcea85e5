"""The worker: its files are the steps of a job's life there."""
