-- enqueue_recall($1 key)
select ids, skipped from "holdfast_enqueues" where key = $1::uuid and num_nonnulls(ids, skipped) > 0
