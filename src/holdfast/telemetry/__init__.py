"""Subscribers to a worker's events: what is counted, traced and logged about jobs."""
