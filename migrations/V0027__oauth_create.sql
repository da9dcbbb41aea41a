-- Why: members let applications of others act for them. What was registered, asked for, approved and issued stands here, so
-- that every race is decided by a row and everything is over on all nodes as soon as a row says so.

create table oauth_applications (
    id                       bigint generated always as identity primary key,
    client_id                uuid        not null constraint oauth_applications_client_id_key unique,
    -- Null: it registered itself.
    organization_id          bigint      references organizations on delete cascade,
    name                     text        not null check (length(name) between 1 and 100),
    website                  text        not null,
    icon                     text,
    redirect_uris            text[]      not null check (cardinality(redirect_uris) between 1 and 20),
    -- Names of the catalogue. One that a node does not know permits nothing there.
    scopes                   text[]      not null,
    -- It can keep no secret: it proves itself by PKCE alone.
    public                   boolean     not null,
    bind_to_authorizing_user boolean     not null,
    project_selection        text        not null check (project_selection in ('off', 'optional', 'required')),
    verified                 boolean     not null default false,
    source                   text        not null check (source in ('manual', 'dcr')),
    created_by               bigint      references users on delete set null,
    created_at               timestamptz not null,
    deleted_at               timestamptz,
    -- What nobody owns may do no more than who approves it.
    check (organization_id is not null or (source = 'dcr' and bind_to_authorizing_user and not verified))
);
create index oauth_applications_organization_idx on oauth_applications (organization_id);
create index oauth_applications_unused_idx on oauth_applications (created_at) where source = 'dcr';

create table oauth_secrets (
    id             bigint generated always as identity primary key,
    application_id bigint      not null references oauth_applications on delete cascade,
    -- SHA-256. The secret itself is shown once and kept nowhere.
    digest         bytea       not null unique check (length(digest) = 32),
    hint           text        not null,
    created_at     timestamptz not null,
    last_used_at   timestamptz,
    revoked_at     timestamptz
);
create index oauth_secrets_application_idx on oauth_secrets (application_id);

create table oauth_requests (
    id                uuid        primary key,
    application_id    bigint      not null references oauth_applications on delete cascade,
    redirect_uri      text        not null,
    state             text,
    scopes            text[]      not null,
    -- S256 of the verifier.
    challenge         bytea       check (length(challenge) = 32),
    resource          text,
    -- What the application would like to be chosen.
    organization_slug text,
    project_ref       text,
    issuer            text        not null,
    created_at        timestamptz not null,
    -- Digest of the browser session that opened it first: nobody else's answer counts.
    session           bytea,
    done_at           timestamptz,
    approved_at       timestamptz
);
create index oauth_requests_created_idx on oauth_requests (created_at);

create table oauth_grants (
    id              bigint generated always as identity primary key,
    application_id  bigint      not null references oauth_applications on delete cascade,
    user_id         bigint      not null references users on delete cascade,
    organization_id bigint      not null references organizations on delete cascade,
    -- Null: all there are and will be.
    projects        bigint[]    check (cardinality(projects) between 1 and 100),
    scopes          text[]      not null,
    resource        text,
    -- The role that approved, for an application that is not bound to what the member may now.
    acts_as         text        not null check (acts_as in ('owner', 'administrator', 'developer', 'read-only')),
    created_at      timestamptz not null,
    last_used_at    timestamptz,
    revoked_at      timestamptz,
    reason          text        check (reason in ('user', 'application', 'replay', 'member', 'deleted', 'superseded')),
    check ((revoked_at is null) = (reason is null))
);
create index oauth_grants_user_idx on oauth_grants (user_id);
create index oauth_grants_application_idx on oauth_grants (application_id);
create index oauth_grants_organization_idx on oauth_grants (organization_id);
create index oauth_grants_revoked_idx on oauth_grants (revoked_at) where revoked_at is not null;

create table oauth_codes (
    digest       bytea       primary key check (length(digest) = 32),
    grant_id     bigint      not null references oauth_grants on delete cascade,
    redirect_uri text        not null,
    challenge    bytea,
    created_at   timestamptz not null,
    used_at      timestamptz
);
create index oauth_codes_grant_idx on oauth_codes (grant_id);
create index oauth_codes_created_idx on oauth_codes (created_at);

create table oauth_access_tokens (
    id            bigint generated always as identity primary key,
    digest        bytea       not null unique check (length(digest) = 32),
    grant_id      bigint      not null references oauth_grants on delete cascade,
    scopes        text[]      not null,
    created_at    timestamptz not null,
    expires_at    timestamptz not null,
    first_used_at timestamptz,
    revoked_at    timestamptz
);
create index oauth_access_tokens_grant_idx on oauth_access_tokens (grant_id);
create index oauth_access_tokens_expires_idx on oauth_access_tokens (expires_at);

create table oauth_refresh_tokens (
    id           bigint generated always as identity primary key,
    digest       bytea       not null unique check (length(digest) = 32),
    grant_id     bigint      not null references oauth_grants on delete cascade,
    created_at   timestamptz not null,
    expires_at   timestamptz not null,
    consumed_at  timestamptz,
    -- The pair that was given for it.
    next_access  bigint,
    next_refresh bigint,
    -- A pair that got lost on its way was replaced by another.
    revoked_at   timestamptz
);
create index oauth_refresh_tokens_grant_idx on oauth_refresh_tokens (grant_id);
create index oauth_refresh_tokens_expires_idx on oauth_refresh_tokens (expires_at);

-- Who is no member any more gave back what they approved, and a second membership does not bring it back.
create function oauth_grants_end() returns trigger language plpgsql as $$
begin
    update oauth_grants set revoked_at = now(), reason = 'member'
    where organization_id = old.organization_id and user_id = old.user_id and revoked_at is null;
    return null;
end
$$;
create trigger members_end_oauth_grants after delete on members for each row execute function oauth_grants_end();

create trigger oauth_applications_announce  after update of scopes, bind_to_authorizing_user, deleted_at or delete
    on oauth_applications for each statement execute function announce();
create trigger oauth_grants_announce        after update of revoked_at or delete on oauth_grants for each statement execute function announce();
create trigger oauth_access_tokens_announce after update of revoked_at or delete on oauth_access_tokens for each statement execute function announce();
