-- Why: a command line tool can be signed in by somebody who is signed in on the pages. What it fetches waits here for some
-- minutes, encrypted for the tool's own key, so that nobody who reads this table can use it.

create table cli_logins (
    -- Chosen by the tool, and good for one login only: a row stays for a day, to know it again.
    session_id  uuid        primary key,
    user_id     bigint      not null references users on delete cascade,
    created_at  timestamptz not null,
    -- SHA-256 of the session's id and the code that the page shows.
    code_digest bytea       check (length(code_digest) = 32),
    -- What is fetched, in hex. Null until there is a token.
    sealed      text,
    public_key  text,
    nonce       text,
    tries_left  smallint    not null check (tries_left >= 0),
    taken_at    timestamptz,
    constraint cli_logins_ready_check check (num_nulls(code_digest, sealed, public_key, nonce) in (0, 4))
);
create index cli_logins_user_id_idx on cli_logins (user_id, created_at);
