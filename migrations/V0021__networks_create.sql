-- Why: who may reach a project's database from where is decided for each connection, by the node that takes it, and must be the
-- same on every node from one moment to the next.

-- A project without a row lets everybody come, with TLS or without.
create table project_networks (
    project_id   bigint      primary key references projects,
    tls_required boolean     not null default false,
    -- Networks that may come; null is every network.
    allowed      inet[],
    updated_at   timestamptz not null
);

-- Addresses from which too many wrong passwords came.
create table network_bans (
    project_id bigint      not null references projects,
    -- An address, or the network of one.
    address    inet        not null,
    until      timestamptz not null,
    primary key (project_id, address)
);
