-- retention_read()
select succeeded, others from "holdfast_retention"
