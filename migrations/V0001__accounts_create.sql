-- Why: users, the organizations they belong to, and the tokens they call with. Everything the access decision reads
-- on each request stands in these tables and in `projects`.

create table users (
    id          bigint generated always as identity primary key,
    gotrue_id   uuid        not null unique,
    email       text        not null,
    username    text        not null,
    created_at  timestamptz not null
);
create unique index users_email_key on users (lower(email));

create table organizations (
    id          bigint generated always as identity primary key,
    slug        text        not null constraint organizations_slug_key unique check (slug ~ '^[A-Za-z0-9_-]{1,64}$'),
    name        text        not null check (length(name) between 1 and 256),
    created_at  timestamptz not null
);

create table members (
    organization_id bigint      not null references organizations on delete cascade,
    user_id         bigint      not null references users on delete cascade,
    role            text        not null check (role in ('owner', 'administrator', 'developer', 'read-only')),
    created_at      timestamptz not null,
    primary key (organization_id, user_id)
);
create index members_user_id_idx on members (user_id);

create table tokens (
    id           bigint generated always as identity primary key,
    user_id      bigint      not null references users on delete cascade,
    name         text        not null check (length(name) between 1 and 256),
    -- SHA-256 of the whole token. The token itself is shown once and kept nowhere.
    digest       bytea       not null constraint tokens_digest_key unique check (length(digest) = 32),
    -- First and last four characters after the prefix, for people to tell tokens apart.
    alias        text        not null,
    created_at   timestamptz not null,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
create index tokens_user_id_idx on tokens (user_id);
