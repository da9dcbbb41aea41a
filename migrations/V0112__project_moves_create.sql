-- Why: an operator moves projects between nodes, to make room or to take a machine out of service. A move outlives the processes of
-- both nodes, so each of its steps is recorded.

create table project_moves (
    id           bigint      generated always as identity primary key,
    project_id   bigint      not null references projects,
    from_node    uuid        not null,
    to_node      uuid        not null,
    -- backing_up and handing_over are work of the earlier node, copying and restoring that of the new one.
    step         text        not null default 'backing_up'
        check (step in ('backing_up', 'copying', 'handing_over', 'restoring', 'done', 'failed', 'cancelled')),
    -- The base backup from which the new node begins.
    base_id      bigint      references base_backups on delete set null,
    requested_at timestamptz not null,
    updated_at   timestamptz not null,
    finished_at  timestamptz,
    -- Why the last attempt at the step failed.
    error        text,
    constraint project_moves_finished_check check ((finished_at is null) = (step not in ('done', 'failed', 'cancelled')))
);
create unique index project_moves_open_key on project_moves (project_id) where finished_at is null;
create trigger project_moves_announce after insert or update or delete on project_moves for each statement execute function announce();

-- Set: the lost cluster was stopped cleanly and its log is in the store to its end, so the log of the new one continues it.
alter table restores add column continues boolean not null default false;
