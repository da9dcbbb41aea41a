-- Why: programs must learn of changes without asking again and again. The log has every change of an organization once, in
-- the order of the transactions that made them.

-- The number of the last event of each organization. Its row is locked while the next is appended.
create table event_heads (
    organization_id bigint primary key references organizations (id) on delete cascade,
    number          bigint not null check (number >= 0)
);

create table events (
    -- Not of organizations: the check would wait for transactions that lock the organization and wait for the audit log.
    organization_id bigint      not null references event_heads (organization_id) on delete cascade,
    -- From 1, without gaps.
    number          bigint      not null check (number > 0),
    -- UUID version 7.
    id              uuid        not null unique,
    type            text        not null,
    at              timestamptz not null,
    -- Events outlive their projects.
    project_ref     text,
    -- The user of the request; null for changes by Gantry itself.
    actor           uuid,
    -- JSON without the fields of the columns.
    payload         text        not null,
    primary key (organization_id, number)
);

create index events_at on events (at);

insert into event_heads (organization_id, number) select id, 0 from organizations;

create trigger events_announce after insert on events for each statement execute function announce();

-- The status of the last event about it. Null before the first one.
alter table projects add column announced_status text;
update projects set announced_status = status;
