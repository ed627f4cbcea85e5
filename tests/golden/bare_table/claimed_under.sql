-- claimed_under($1 token)
select j."code"
from "app"."orders" j
where j."claimed_at" is not null and j."claim_token" = $1::uuid
