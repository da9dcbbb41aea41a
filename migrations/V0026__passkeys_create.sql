-- Why: people can sign in with a passkey. Public keys only; what their signature has to answer waits in a row that is taken when it is
-- looked at, so that one answer counts once, on whichever node.

create table passkeys (
    id            bigint generated always as identity primary key,
    user_id       bigint      not null references users on delete cascade,
    -- What the authenticator calls it, and the host for which it was made: it is of no use at another.
    credential_id bytea       not null constraint passkeys_credential_key unique check (length(credential_id) <= 1023),
    host          text        not null,
    name          text        not null,
    -- Public key, counter and what came with them, as the library writes it.
    passkey       text        not null check (length(passkey) <= 65536),
    created_at    timestamptz not null,
    last_used_at  timestamptz
);
create index passkeys_user_idx on passkeys (user_id);

create table passkey_challenges (
    id         uuid        primary key,
    -- Who adds one; nobody who signs in is known yet.
    user_id    bigint      references users on delete cascade,
    state      text        not null check (length(state) <= 65536),
    created_at timestamptz not null
);
create index passkey_challenges_created_idx on passkey_challenges (created_at);
