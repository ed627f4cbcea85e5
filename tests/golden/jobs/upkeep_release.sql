-- upkeep_release($1 duty, $2 token)
delete from "holdfast_upkeep" u where u.duty = $1::text and u.token = $2::uuid
