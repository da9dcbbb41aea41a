-- Why: making, merging and resetting branches take a while and can fail half way. A run is the log of one of them, and what is
-- left to do after a crash: its steps are repeatable, and what they need is read anew from the two databases.

create table action_runs (
    id                text        primary key check (id ~ '^[0-9a-f]{32}$'),
    -- The project it changes: the parent for a merge, the branch for all others.
    project_id        bigint      not null references projects,
    branch_id         uuid        not null references branches on delete cascade,
    kind              text        not null check (kind in ('create', 'merge', 'push', 'reset')),
    -- The last migration to apply; null is all.
    migration_version text,
    -- Status and time of each step, by its name.
    steps             jsonb       not null,
    logs              text        not null default '' check (length(logs) <= 100000),
    attempts          integer     not null default 0,
    not_before        timestamptz not null,
    finished_at       timestamptz,
    created_at        timestamptz not null,
    updated_at        timestamptz not null
);
-- One change of a project at a time.
create unique index action_runs_open_key on action_runs (project_id) where finished_at is null;
create index action_runs_project_idx on action_runs (project_id, created_at desc);
create index action_runs_due_idx on action_runs (not_before) where finished_at is null;

create trigger action_runs_announce after insert or delete on action_runs for each statement execute function announce();
