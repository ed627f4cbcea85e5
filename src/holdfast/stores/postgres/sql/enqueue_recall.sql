-- role: producer
-- What an enqueue did whose reply was lost. Index: primary key.
select ids, skipped from {enqueues} where key = :key::uuid and num_nonnulls(ids, skipped) > 0
