-- Why: every node answers requests about every project, so nodes find each other here, and new projects are placed on one of them.

create table nodes (
    -- That of the data folder.
    id              uuid        primary key,
    name            text        not null,
    -- The region of its projects. Null: any.
    region          text,
    -- Host and port of its fleet port. Null: other nodes cannot reach it.
    address         text,
    version         text        not null,
    -- Major versions of PostgreSQL for new projects.
    engines         int[]       not null,
    memory_bytes    bigint      not null,
    -- Memory of a project of the smallest size. Null: projects are not bounded.
    project_bytes   bigint,
    disk_free_bytes bigint,
    registered_at   timestamptz not null,
    -- Set: no new project is placed on it.
    cordoned_at     timestamptz,
    -- Set: it has left, and its certificates are rejected.
    removed_at      timestamptz
);
create unique index nodes_name_key on nodes (name) where removed_at is null;

-- Clusters in data folders of nodes whose projects were rebuilt on other nodes. They are kept, and never started.
create table superseded_clusters (
    project_id bigint      not null references projects,
    node       uuid        not null,
    since      timestamptz not null,
    primary key (project_id, node)
);

-- The authority that issues the certificates by which nodes recognize each other.
create table fleet_authority (
    one         boolean     primary key default true check (one),
    -- DER.
    certificate bytea       not null,
    -- PEM of the private key, sealed.
    sealed_key  bytea       not null,
    created_at  timestamptz not null
);
