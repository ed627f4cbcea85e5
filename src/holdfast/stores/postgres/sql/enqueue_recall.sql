-- role: producer
-- The ids of an enqueue whose reply was lost. Index: primary key.
select ids, skipped from {enqueues} where key = :key::uuid and num_nonnulls(ids, skipped) > 0
