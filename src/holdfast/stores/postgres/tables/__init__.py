"""Queues on tables that are not Holdfast's: the row is the work."""
