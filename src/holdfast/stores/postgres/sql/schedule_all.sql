-- role: reader
-- Every schedule.
select {schedule_columns} from {schedules} s order by s.name collate "C"
