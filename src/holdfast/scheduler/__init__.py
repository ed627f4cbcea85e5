"""Schedules: which instants a cron expression names, and the jobs they become."""
