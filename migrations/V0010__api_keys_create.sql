-- Why: clients of a project's services authenticate with the project's API keys. They must be found by what was sent, so each
-- has a digest, and be shown again, so each is also kept encrypted, by a key that is not in this database.

-- Which key that is. Servers with another one could not read what is here, and find out before they start.
create table sealing (
    one         boolean primary key default true check (one),
    fingerprint text    not null
);

-- What a project has once. Made with the project; for a project from before this table, when its keys are first asked for.
create table key_rings (
    project_id     bigint      primary key references projects,
    -- Encrypted. Signs the legacy keys, which are not kept: they are the same whenever they are signed.
    jwt_secret     bytea       not null,
    legacy_enabled boolean     not null default true,
    created_at     timestamptz not null
);

create table api_keys (
    id          uuid        primary key,
    project_id  bigint      not null references key_rings on delete cascade,
    kind        text        not null check (kind in ('publishable', 'secret')),
    name        text        not null check (name ~ '^[a-z_][a-z0-9_]{3,63}$'),
    description text,
    -- Claims of the token that a secret key stands for.
    template    jsonb       check (kind = 'secret' or template is null),
    sealed      bytea       not null,
    -- SHA-256 of the key.
    digest      bytea       not null constraint api_keys_digest_key unique check (length(digest) = 32),
    inserted_at timestamptz not null,
    updated_at  timestamptz not null,
    constraint api_keys_name_key unique (project_id, kind, name)
);
