"""Schedules: the instants of a cron expression, and the jobs of its ticks."""
