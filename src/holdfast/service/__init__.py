"""Worker processes: supervisor, children, health endpoint, stop and reload."""
