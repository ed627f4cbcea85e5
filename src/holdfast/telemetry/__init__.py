"""Subscribers to a worker's events: metrics, traces and logs of jobs."""
