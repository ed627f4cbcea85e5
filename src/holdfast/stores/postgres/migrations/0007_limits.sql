-- One row for each entrypoint that has a limit of the whole fleet. A claim under the limit locks it.
-- To lock a row takes a privilege on the table. Any role that may connect can take an advisory lock.

create table {limits} (
    entrypoint  text primary key
);
