-- Why: a project can be upgraded to another major version of PostgreSQL. The reconciler continues an upgrade that was
-- interrupted, and clients poll its progress.

alter table projects
    drop constraint projects_status_check,
    add constraint projects_status_check check (case desired
        when 'active' then status in ('COMING_UP', 'INIT_FAILED', 'ACTIVE_HEALTHY', 'ACTIVE_UNHEALTHY', 'RESTORING', 'RESTORE_FAILED',
            'RESTARTING', 'UPGRADING')
        when 'paused' then status in ('PAUSING', 'INACTIVE', 'PAUSE_FAILED')
        when 'removed' then status in ('GOING_DOWN', 'REMOVED')
    end);

create table project_upgrades (
    id              uuid        primary key,
    project_id      bigint      not null references projects,
    -- Counts the upgrades of the project. Part of the names of their folders.
    number          integer     not null,
    from_version    text        not null,
    target_version  text        not null,
    target_channel  text        not null,
    -- The contract's name of the last completed step.
    progress        text        not null,
    status          text        not null check (status in ('running', 'done', 'failed')),
    attempts        integer     not null default 0,
    -- The contract's name of the failed step, and the reason.
    error           text,
    detail          text,
    initiated_at    timestamptz not null,
    changed_at      timestamptz not null,
    -- Until when the data before the upgrade is kept. Null: it is not kept.
    kept_until      timestamptz,
    -- Whether the planner's statistics are those of the new version.
    analyzed        boolean     not null default false,
    unique (project_id, number),
    check (status <> 'failed' or error is not null)
);
create unique index project_upgrades_running_key on project_upgrades (project_id) where status = 'running';
create index project_upgrades_pending_idx on project_upgrades (project_id)
    where status = 'done' and (kept_until is not null or not analyzed);
