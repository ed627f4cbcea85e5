-- page_open($1 limit)
select set_config('transaction_read_only', 'on', true),
       set_config('statement_timeout', $1::text, true),
       set_config('enable_seqscan', 'off', true)
