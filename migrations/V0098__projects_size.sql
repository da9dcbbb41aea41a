-- Why: a compute size sets the limits of a server and its settings. The size of the last successful start is kept, because a
-- server that does not start with a new size gets the old one back. The owner can choose more disk space, within the bound of
-- the operator.

alter table projects
    add column started_size text,
    -- Bytes. Null: the limit of the operator.
    add column disk_bytes bigint check (disk_bytes > 0);
