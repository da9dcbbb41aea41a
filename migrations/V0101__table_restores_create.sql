-- Why: single tables of a past moment are read from a recovered cluster into a new schema of the running project.

create table table_restores (
    id           bigint      generated always as identity primary key,
    project_id   bigint      not null references projects,
    -- The moment: all commits up to a time, or the log up to a position of an archive.
    target_time  timestamptz,
    archive_id   bigint      references archives on delete set null,
    target_lsn   bigint,
    -- Array of objects with schema, name and, after a success, rows.
    tables       jsonb       not null,
    -- The schema in which they are created.
    schema       text        not null,
    requested_at timestamptz not null,
    -- Failed attempts that another one may follow.
    attempts     integer     not null default 0,
    finished_at  timestamptz,
    error        text,
    check ((target_time is null) <> (target_lsn is null))
);
create unique index table_restores_open_key on table_restores (project_id) where finished_at is null;
create index table_restores_project_idx on table_restores (project_id, id desc);
