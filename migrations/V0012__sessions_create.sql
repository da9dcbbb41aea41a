-- Why: people sign in to the account pages with a password, or a link that an operator gives them, and stay signed in
-- for a while. What signs somebody in is kept as a hash or a digest only.

create table passwords (
    user_id    bigint      primary key references users on delete cascade,
    -- Argon2id, as a PHC string with its parameters and salt.
    hash       text        not null,
    changed_at timestamptz not null
);

create table sessions (
    id           bigint generated always as identity primary key,
    user_id      bigint      not null references users on delete cascade,
    -- SHA-256 of the cookie's value.
    digest       bytea       not null constraint sessions_digest_key unique check (length(digest) = 32),
    created_at   timestamptz not null,
    -- To the minute.
    last_used_at timestamptz not null,
    expires_at   timestamptz not null,
    revoked_at   timestamptz,
    -- Where it was begun, for its owner to recognise.
    address      text        not null,
    user_agent   text        not null check (length(user_agent) <= 256)
);
create index sessions_user_id_idx on sessions (user_id);

-- Sign somebody in once, without a password.
create table sign_in_links (
    digest     bytea       primary key check (length(digest) = 32),
    user_id    bigint      not null references users on delete cascade,
    expires_at timestamptz not null
);
create index sign_in_links_user_id_idx on sign_in_links (user_id);
