-- role: worker
-- Gives a duty up, so that another worker need not wait for its expiry. Index: primary key.
delete from {upkeep} u where u.duty = :duty::text and u.token = :token::uuid
