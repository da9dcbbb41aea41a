-- Why: a client that lost the answer to a change must be able to send the request again without making the change twice. The key
-- and the answer are written in the transaction of the change, so that both or neither are committed.

create table idempotency_keys (
    -- The user or the approved application that sent the key.
    caller     text        not null,
    -- The project, branch or organization as the request names it; empty for the account.
    target     text        not null,
    key        text        not null,
    -- SHA-256 of method, path, query and body.
    digest     bytea       not null,
    operation  text        not null,
    request_id text        not null,
    -- Tells the requests with one key apart.
    attempt    uuid        not null,
    -- begun: before an effect outside of this database; changed: the answer follows; answered: it does not change any more.
    step       text        not null check (step in ('begun', 'changed', 'answered')),
    -- Status, headers and body, sealed. Null if answered: the answer was too large to be kept.
    answer     bytea,
    at         timestamptz not null,
    expires_at timestamptz not null,
    primary key (caller, target, key)
);

create index idempotency_keys_expires_at on idempotency_keys (expires_at);
