-- claimed_under($1 token)
select j."id"
from "email_snoozes" j
where j."claimed_at" is not null and j."claim_token" = $1::uuid
