-- Why: a project can accept tokens of users that another service signs in. Its public keys are stored, because the Data API must work
-- while that service does not answer, and are read again from time to time, because it rotates them.

create table third_party_auth (
    id              uuid        primary key,
    project_id      bigint      not null references projects,
    oidc_issuer_url text,
    jwks_url        text,
    custom_jwks     jsonb,
    resolved_jwks   jsonb       not null,
    inserted_at     timestamptz not null,
    updated_at      timestamptz not null,
    resolved_at     timestamptz not null,
    checked_at      timestamptz not null,
    check (num_nonnulls(oidc_issuer_url, jwks_url, custom_jwks) = 1)
);

create index third_party_auth_project on third_party_auth (project_id);
create index third_party_auth_due on third_party_auth (checked_at) where custom_jwks is null;

create trigger third_party_auth_announce after insert or update of resolved_jwks or delete on third_party_auth for each statement execute function announce();
