-- Why: a project is handed over to another organization with a secret: an owner of the project passes it on, and an
-- owner of the other organization claims the project with it.

create table project_claims (
    -- A project has one at most: the next one replaces it.
    project_id  bigint      primary key references projects,
    -- SHA-256 of the secret, which is shown once and kept nowhere.
    digest      bytea       not null constraint project_claims_digest_key unique check (length(digest) = 32),
    -- The secret with most of it left out, to tell one from another.
    alias       text        not null,
    created_by  bigint      not null references users on delete cascade,
    created_at  timestamptz not null,
    expires_at  timestamptz not null
);
create index project_claims_created_by_idx on project_claims (created_by);
