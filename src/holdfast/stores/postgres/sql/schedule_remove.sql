-- role: operator
-- Forgets a schedule; jobs it made stay.
delete from {schedules} s where s.name = :name::text returning s.id
