-- Why: the owner chooses the time of the daily backup, and marks points to which the database can be taken back.

create table backup_schedules (
    project_id   bigint        primary key references projects,
    -- Time of day in UTC, as the owner wrote it.
    schedule_for text          not null,
    -- The schedule counts from here on.
    updated_at   timestamptz   not null,
    -- Times of the last changes, of which three in 24 hours are permitted.
    changes      timestamptz[] not null
);

create table restore_points (
    id           bigint      generated always as identity primary key,
    project_id   bigint      not null references projects,
    archive_id   bigint      not null references archives on delete cascade,
    name         text        not null check (length(name) <= 20),
    lsn          bigint      not null,
    -- The restore that replaced this cluster, which may still be kept under its number.
    restore_id   bigint,
    created_at   timestamptz not null,
    -- When the log up to it was in the store.
    completed_on timestamptz
);
create index restore_points_project_idx on restore_points (project_id, id desc);
