-- Why: the desired state of every project and what was last observed of it. A reconciler drives the one to the other,
-- so a crash at any point leaves a row that says what is still to be done.

create table projects (
    id              bigint generated always as identity primary key,
    ref             text        not null constraint projects_ref_key unique check (ref ~ '^[a-z]{20}$'),
    organization_id bigint      not null references organizations,
    name            text        not null check (length(name) between 1 and 256),
    region          text        not null,
    instance_size   text        not null,
    engine          text        not null,
    release_channel text        not null,
    -- Which data directory holds the cluster: only the node that owns it drives this row.
    node            uuid        not null,
    desired         text        not null check (desired in ('active', 'removed')),
    status          text        not null check (status in ('COMING_UP', 'ACTIVE_HEALTHY', 'ACTIVE_UNHEALTHY', 'INIT_FAILED', 'GOING_DOWN', 'REMOVED')),
    -- SCRAM verifier of the customer's password, kept only until it is set in the cluster.
    password_verifier text,
    attempts        integer     not null default 0,
    not_before      timestamptz not null,
    last_error      text,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    check (desired = 'active' or status in ('GOING_DOWN', 'REMOVED'))
);
-- The only protection against creating a project twice; a removed one gives its name back.
create unique index projects_name_key on projects (organization_id, name) where desired = 'active';
create index projects_organization_id_idx on projects (organization_id) where desired = 'active';
create index projects_unsettled_idx on projects (node, not_before) where status not in ('ACTIVE_HEALTHY', 'REMOVED');
