-- Why: a project can be reached under a name of its choosing: one below the projects' domain, or one of its owner's. Who has which
-- name must be the same on every node, and a name that was let go must not at once be somebody else's.

-- `<name>.<domain of the projects>`.
create table vanity_subdomains (
    project_id bigint      primary key references projects,
    name       text        not null constraint vanity_subdomains_name_key unique check (name ~ '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$'),
    created_at timestamptz not null
);

-- Names that were let go: until then only the organization that had them may have them again.
create table vanity_releases (
    name            text        primary key,
    -- No reference: the name stays released when the organization is gone.
    organization_id bigint      not null,
    until           timestamptz not null
);

-- Names that are their owners' own. A project has one at most, and either this or a vanity subdomain.
create table custom_hostnames (
    project_id bigint      primary key references projects,
    -- New whenever a name is asked for, so that what belonged to an earlier one is never taken for this one's.
    id         uuid        not null constraint custom_hostnames_id_key unique,
    -- As it is in DNS: lower case, A-labels.
    host       text        not null,
    state      text        not null check (state in ('initiated', 'verified', 'certified', 'active')),
    -- What the last look at its DNS found wrong.
    problems   text[]      not null default '{}',
    -- Why the last order of a certificate failed.
    refusal    text,
    -- Since when its DNS leads elsewhere.
    astray_at  timestamptz,
    -- Looks and orders that failed in a row.
    attempts   integer     not null default 0,
    not_before timestamptz not null,
    created_at timestamptz not null
);
-- Who proves a name has it; asking for it keeps nobody else from doing so.
create unique index custom_hostnames_host_key on custom_hostnames (host) where state <> 'initiated';
create index custom_hostnames_due_idx on custom_hostnames (not_before);

create trigger vanity_subdomains_announce after insert or update or delete on vanity_subdomains for each statement execute function announce();
create trigger custom_hostnames_announce  after insert or update or delete on custom_hostnames  for each statement execute function announce();
