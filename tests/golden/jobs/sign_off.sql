-- sign_off($1 id)
delete from "holdfast_workers" w where w.id = $1::text
