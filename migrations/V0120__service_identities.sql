-- Why: a CI proves its identity by a token of its own issuer, so that no secret of this server is stored
-- there. The token is exchanged for a short one of a service identity: a member that cannot sign in.

alter table users
    -- The organization of a service identity. Null for people.
    add column service_of         bigint references organizations on delete cascade,
    -- Time of the last refused exchange in the audit log, which has one in a minute at most.
    add column refusal_audited_at timestamptz;
create index users_service_of_idx on users (service_of) where service_of is not null;

-- The time of the refusal decides nothing, and is written while no token changes.
drop trigger users_announce on users;
create trigger users_announce after update of gotrue_id, email, username, service_of or delete on users
    for each statement execute function announce();

-- Nothing that signs in, and no approval of an application, belongs to a service identity.
create function service_identities_keep_out() returns trigger language plpgsql as $$
begin
    if exists (select from users where id = new.user_id and service_of is not null) then
        raise exception 'a service identity cannot sign in' using errcode = 'integrity_constraint_violation';
    end if;
    return new;
end
$$;
create trigger passwords_of_people before insert or update of user_id on passwords
    for each row execute function service_identities_keep_out();
create trigger sessions_of_people before insert or update of user_id on sessions
    for each row execute function service_identities_keep_out();
create trigger sign_in_links_of_people before insert or update of user_id on sign_in_links
    for each row execute function service_identities_keep_out();
create trigger identities_of_people before insert or update of user_id on identities
    for each row execute function service_identities_keep_out();
create trigger passkeys_of_people before insert or update of user_id on passkeys
    for each row execute function service_identities_keep_out();
create trigger oauth_grants_of_people before insert or update of user_id on oauth_grants
    for each row execute function service_identities_keep_out();

-- A service identity is a member of its own organization only, and no owner.
create function service_identities_keep_role() returns trigger language plpgsql as $$
begin
    if exists (select from users where id = new.user_id and service_of is not null
               and (service_of <> new.organization_id or new.role = 'owner')) then
        raise exception 'a service identity is a member of its organization, and no owner'
            using errcode = 'integrity_constraint_violation';
    end if;
    return new;
end
$$;
create trigger members_service_identities before insert or update of organization_id, user_id, role on members
    for each row execute function service_identities_keep_role();
create trigger project_roles_service_identities
    before insert or update of organization_id, user_id, role on project_roles
    for each row execute function service_identities_keep_role();

-- The rules by which tokens of other issuers are exchanged.
create table trusts (
    id           uuid        primary key,
    -- The service identity.
    user_id      bigint      not null references users on delete cascade,
    issuer       text        not null check (length(issuer) between 1 and 512),
    audience     text        not null check (length(audience) between 1 and 512),
    -- A pattern, in which * is any run of characters.
    subject      text        not null check (length(subject) between 1 and 512),
    -- JSON object: names of claims with patterns.
    claims       jsonb       not null,
    -- The limits of the tokens. Projects are null for the whole organization.
    permissions  text[]      not null check (cardinality(permissions) > 0),
    projects     bigint[]    check (cardinality(projects) between 1 and 100),
    networks     cidr[]      not null,
    life_minutes smallint    not null check (life_minutes between 1 and 60),
    created_at   timestamptz not null
);
create index trusts_user_id_idx on trusts (user_id);

-- The rule by which a token was issued. Removing the rule revokes the token.
alter table tokens add column trust_id uuid references trusts on delete set null;
create index tokens_trust_id_idx on tokens (trust_id) where trust_id is not null;

-- Tokens that were exchanged, until they expire: each is exchanged once.
create table exchanged_tokens (
    trust_id   uuid        not null references trusts on delete cascade,
    -- SHA-256 of the claim jti.
    digest     bytea       not null check (length(digest) = 32),
    expires_at timestamptz not null,
    primary key (trust_id, digest)
);
create index exchanged_tokens_expires_at_idx on exchanged_tokens (expires_at);
