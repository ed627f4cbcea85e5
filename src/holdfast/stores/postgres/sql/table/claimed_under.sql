-- The keys of the rows of a claim, and no other column: one of the others cannot be read.
select {key}
from {table} j
where {claimed_at} is not null and {claim_token} = :token::uuid
