"""Where jobs are kept: in memory, in PostgreSQL."""
