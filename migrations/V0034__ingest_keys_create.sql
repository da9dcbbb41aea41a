-- Why: log lines of a project may come from elsewhere: a stack that runs beside it, or a collector. Whoever sends them shows a
-- key that lets add lines of this one project, and nothing else.

create table ingest_keys (
    id           bigint generated always as identity primary key,
    project_id   bigint      not null references projects,
    name         text        not null check (length(name) between 1 and 100),
    -- SHA-256. The key itself is shown once and kept nowhere.
    digest       bytea       not null unique check (length(digest) = 32),
    hint         text        not null,
    created_at   timestamptz not null,
    last_used_at timestamptz
);
create index ingest_keys_project_idx on ingest_keys (project_id);
