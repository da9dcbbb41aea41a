-- Why: a project can be protected from accidents. A destructive request then needs the approval of a
-- person, and runs once.

alter table projects add column protected boolean not null default false;

create table approvals (
    id           uuid        primary key,
    project_id   bigint      not null references projects,
    requested_by bigint      not null references users on delete cascade,
    operation    text        not null,
    method       text        not null,
    -- Path and query as sent.
    path         text        not null,
    -- SHA-256 of method, path, query and body.
    digest       bytea       not null check (length(digest) = 32),
    -- Completes "this request …".
    reason       text        not null,
    -- The begin of the body, sealed. Null if there is none.
    body         bytea,
    requested_at timestamptz not null,
    expires_at   timestamptz not null,
    approved     boolean,
    decided_by   bigint      references users on delete set null,
    decided_at   timestamptz,
    -- The end of the time in which an approved request may run.
    usable_until timestamptz,
    used_at      timestamptz,
    constraint approvals_decision_check check ((approved is null) = (decided_at is null)),
    constraint approvals_use_check check (coalesce(approved, false) = (usable_until is not null)),
    constraint approvals_used_check check (used_at is null or approved)
);
create index approvals_project_id_idx on approvals (project_id, requested_at desc, id);
create index approvals_requested_by_idx on approvals (requested_by, digest);
create index approvals_decided_by_idx on approvals (decided_by) where decided_by is not null;
