-- The keys of what a claim took, and nothing else: some other value of theirs cannot be read.
select {key}
from {table} j
where {claimed_at} is not null and {claim_token} = :token::uuid
