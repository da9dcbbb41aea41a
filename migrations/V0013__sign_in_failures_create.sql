-- Why: passwords are guessed. Failures are counted for each account and for each address, here, so that asking another
-- node, or this one after a restart, gives nobody more guesses.

create table sign_in_failures (
    -- SHA-256 of the account's address, which need not exist, or of the network address.
    subject    bytea       primary key check (length(subject) = 32),
    failures   integer     not null,
    last_at    timestamptz not null,
    -- Until then nothing is tried.
    held_until timestamptz not null
);
create index sign_in_failures_last_at_idx on sign_in_failures (last_at);
