-- role: pruner
-- Sets how long log rows are kept; null keeps them for ever. Index: primary key.
update {retention} set succeeded = :succeeded::interval, others = :others::interval
returning succeeded, others
