-- Why: making a token on the pages takes several steps: what was filled in waits to be looked over, and the token, once made,
-- to be shown, once. Neither may stand in an address or a cookie.

create table token_drafts (
    id         uuid        primary key,
    user_id    bigint      not null references users on delete cascade,
    draft      text        not null check (length(draft) <= 65536),
    created_at timestamptz not null
);
create index token_drafts_user_id_idx on token_drafts (user_id, created_at);

create table token_reveals (
    token_id   bigint      primary key references tokens on delete cascade,
    -- Only the browser that made it is shown it.
    session    bytea       not null check (length(session) = 32),
    sealed     bytea       not null,
    created_at timestamptz not null
);
create index token_reveals_created_at_idx on token_reveals (created_at);
