-- role: reader
-- Since when more log rows are uncounted than the statistics are read with; null if they are complete.
-- Index: log_time.
select case when count(*) >= {most_uncounted} then min(u.created) end from ({uncounted}) u
