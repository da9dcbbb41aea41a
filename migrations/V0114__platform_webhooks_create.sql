-- Why: systems of an organization learn of its changes without asking for them. Each endpoint has a queue of its own, so that
-- one whose receiver fails delays no other.

create table webhook_endpoints (
    -- UUID version 7, as the ids below.
    id              uuid        primary key,
    -- The organization with the log of events that the endpoint follows.
    organization_id bigint      not null references organizations on delete cascade,
    -- Null for an endpoint of the organization, which also gets the events of its projects.
    project_id      bigint      references projects on delete cascade,
    url             text        not null,
    enabled         boolean     not null,
    description     text,
    -- Names of types, or `*`.
    event_types     text[]      not null,
    -- Sealed JSON: signing secrets and header fields.
    secrets         bytea       not null,
    -- The user that created it.
    created_by      uuid        not null,
    created_at      timestamptz not null,
    -- Number of the last event of the log that is queued or passed over.
    position        bigint      not null,
    -- Time of the next attempt; null if none is queued.
    due_at          timestamptz,
    -- The attempt in flight: its random id, and the time after which another node repeats it.
    claim           uuid,
    claimed_until   timestamptz,
    -- Whether the last attempt succeeded.
    proven          boolean     not null default false
);
create index webhook_endpoints_organization_id_idx on webhook_endpoints (organization_id);
create index webhook_endpoints_project_id_idx on webhook_endpoints (project_id) where project_id is not null;
create index webhook_endpoints_due_at_idx on webhook_endpoints (due_at) where due_at is not null;

-- The copy of an event for one endpoint.
create table webhook_events (
    id              uuid        primary key,
    endpoint_id     uuid        not null references webhook_endpoints on delete cascade,
    -- The order in which they are delivered.
    number          bigint      generated always as identity,
    -- JSON as delivered.
    body            text        not null
);
create index webhook_events_endpoint_id_idx on webhook_events (endpoint_id, number);

-- Attempts to deliver an event, queued or made.
create table webhook_deliveries (
    id               uuid        primary key,
    -- The order of the history.
    number           bigint      generated always as identity,
    endpoint_id      uuid        not null references webhook_endpoints on delete cascade,
    event_id         uuid        not null references webhook_events on delete cascade,
    -- From 1; null for tests and for retries by hand, which are not repeated.
    attempt          smallint,
    status           text        not null check (status in ('pending', 'success', 'failure', 'skipped')),
    -- Time of the attempt; of a pending one the earliest time.
    attempted_at     timestamptz not null,
    -- 0 without a response.
    response_code    integer     not null default 0,
    -- JSON.
    response_headers text,
    response_body    text,
    error_code       text,
    error_message    text
);
create index webhook_deliveries_endpoint_id_idx on webhook_deliveries (endpoint_id, number);
create index webhook_deliveries_event_id_idx on webhook_deliveries (event_id);
create index webhook_deliveries_pending_idx on webhook_deliveries (endpoint_id) where status = 'pending';
create index webhook_deliveries_attempted_at_idx on webhook_deliveries (attempted_at) where status <> 'pending';
