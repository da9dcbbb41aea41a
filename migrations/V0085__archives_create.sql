-- Why: backups of a project are sealed with a key of its own, which is sealed with the platform's. An archive is the unbroken
-- write-ahead log of one cluster; a restored cluster, or a gap, begins another one.

create table backup_keys (
    project_id bigint      primary key references projects,
    sealed     bytea       not null,
    created_at timestamptz not null
);

create table archives (
    id             bigint      generated always as identity primary key,
    project_id     bigint      not null references projects,
    -- System identifier of the cluster, an unsigned number of 64 bits, and number of its archive: together the folder's name.
    system_id      text        not null,
    part           integer     not null,
    timeline       bigint      not null,
    segment_bytes  bigint      not null check (segment_bytes between 1048576 and 1073741824),
    -- The write-ahead log between these positions is in the store.
    begin_lsn      bigint      not null,
    shipped_lsn    bigint      not null,
    -- Every commit before this time is in the store.
    shipped_at     timestamptz not null,
    last_commit_at timestamptz,
    created_at     timestamptz not null,
    ended_at       timestamptz,
    ended_reason   text,
    constraint archives_part_key unique (project_id, system_id, part)
);
create unique index archives_open_key on archives (project_id) where ended_at is null;

create table base_backups (
    id            bigint      generated always as identity primary key,
    project_id    bigint      not null references projects,
    archive_id    bigint      not null references archives on delete cascade,
    status        text        not null check (status in ('COMPLETED', 'FAILED', 'PENDING', 'REMOVED')),
    -- Why it was made: first, schedule, volume, request, final.
    reason        text        not null,
    start_lsn     bigint,
    stop_lsn      bigint,
    -- Time from which the cluster can be recovered with it.
    consistent_at timestamptz,
    -- Size of the data directory, and of the objects that were new.
    bytes         bigint,
    stored_bytes  bigint,
    error         text,
    -- When a recovery of it last passed all checks, and why the last one did not.
    verified_at   timestamptz,
    verify_error  text,
    inserted_at   timestamptz not null
);
create index base_backups_project_idx on base_backups (project_id, id desc);
create index base_backups_pending_idx on base_backups (archive_id) where status = 'PENDING';
