-- role: operator
-- Deletes a schedule; the jobs of its ticks stay.
delete from {schedules} s where s.name = :name::text returning s.id
