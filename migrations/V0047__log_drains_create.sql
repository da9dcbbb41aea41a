-- Why: customers want the log lines of their projects in their own systems. A drain sends them there, at least once and in order: its
-- position has to survive every process, and its settings contain credentials.

create table log_drains (
    id           uuid        primary key,
    project_id   bigint      not null references projects,
    name         text        not null check (length(name) between 1 and 100),
    description  text,
    backend_type text        not null,
    -- The settings as JSON, sealed: they contain credentials.
    config       bytea       not null,
    -- Rises with every change, so that a delivery with earlier settings does not report its outcome.
    revision     bigint      not null default 1,
    created_at   timestamptz not null
);
create index log_drains_project_idx on log_drains (project_id);

create trigger log_drains_announce after insert or update or delete on log_drains
    for each statement execute function announce();

-- Each process of each node stores the lines that it took in, and delivers them. One row for a drain and such a store.
create table log_drain_progress (
    drain_id   uuid        not null references log_drains on delete cascade,
    -- Name of the store: the node and the number of its process.
    store      text        not null,
    -- The numbering of lines that `next_line` refers to. A store that was lost begins another.
    epoch      text        not null,
    -- The process that wrote the row. A later one checks the position against its store.
    process    uuid        not null,
    -- Number of the first line that the target has not acknowledged.
    next_line  bigint      not null,
    delivered  bigint      not null default 0,
    dropped    bigint      not null default 0,
    -- Lines that wait for delivery.
    lag        bigint      not null default 0,
    -- Null: the last delivery succeeded.
    error      text,
    failing_since timestamptz,
    updated_at timestamptz not null,
    primary key (drain_id, store)
);
