"""What producers and operators call: queries, waiting for the end of jobs, typed tasks."""
