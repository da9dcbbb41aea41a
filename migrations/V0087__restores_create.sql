-- Why: a restore is work of many steps that is interrupted and repeated. Its row and the names of two folders say how far it came.

create table restores (
    id           bigint      generated always as identity primary key,
    project_id   bigint      not null references projects,
    -- The moment: all commits up to a time, or the log up to a position of an archive.
    target_time  timestamptz,
    archive_id   bigint      references archives on delete set null,
    target_lsn   bigint,
    -- The restore whose replaced cluster comes back instead.
    reuse_of     bigint,
    base_id      bigint,
    -- Verifier of the password, which the restored cluster gets.
    verifier     text,
    requested_at timestamptz not null,
    finished_at  timestamptz,
    error        text,
    -- Until then the replaced cluster is kept.
    kept_until   timestamptz,
    check ((target_time is null) <> (target_lsn is null and reuse_of is null))
);
create unique index restores_open_key on restores (project_id) where finished_at is null;
