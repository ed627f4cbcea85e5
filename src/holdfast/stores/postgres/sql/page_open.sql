-- role: reader
-- The transaction of a page: it reads, ends in time, and never scans a table from end to end.
select set_config('transaction_read_only', 'on', true),
       set_config('statement_timeout', :limit::text, true),
       set_config('enable_seqscan', 'off', true)
