-- page_newer($1 after)
select count(*) from (select from "holdfast" j where j.id > $1::bigint limit 1001) few
