-- Why: members can be let into a project's database for a time. What they were granted, and which roles of the server they got
-- for it, is kept here, so that whatever happens in between, a role ends when its time is over.

create table jit_settings (
    project_id bigint  primary key references projects,
    enabled    boolean not null
);

create table jit_grants (
    organization_id bigint      not null,
    project_id      bigint      not null references projects,
    user_id         bigint      not null,
    -- Role of the database.
    role            text        not null check (octet_length(role) between 1 and 63),
    expires_at      timestamptz,
    networks        cidr[]      not null,
    branches_only   boolean     not null,
    created_at      timestamptz not null,
    primary key (project_id, user_id, role),
    -- Who is no member any more has no access either.
    foreign key (organization_id, user_id) references members on delete cascade
);
create index jit_grants_member_idx on jit_grants (organization_id, user_id);

create table jit_logins (
    id         bigint      generated always as identity primary key,
    project_id bigint      not null references projects,
    -- No reference: the role has to go when its user has gone.
    user_id    bigint      not null,
    role       text        not null,
    -- Of the role in the server that the member logs in as.
    name       text        not null unique,
    until      timestamptz not null,
    -- SCRAM verifier of the password, kept only until the server knows it.
    verifier   text,
    -- Whether the server is still to be told, and why it would not have it.
    stale      boolean     not null default true,
    refusal    text,
    -- Counts what was asked for. Whoever writes down an outcome names the number it is the outcome of.
    generation bigint      not null default 0,
    attempts   integer     not null default 0,
    not_before timestamptz not null,
    constraint jit_logins_member_key unique (project_id, user_id, role)
);

create trigger jit_settings_announce after insert or update or delete on jit_settings for each statement execute function announce();
create trigger jit_grants_announce   after insert or update or delete on jit_grants   for each statement execute function announce();
create trigger jit_logins_announce   after insert or update or delete on jit_logins   for each statement execute function announce();
