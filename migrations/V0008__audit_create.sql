-- Why: who changed what, or tried to, must be told long after, and be believed. Entries are chained by their hashes, a chain
-- for each organization and each account, so that one that was altered, left out or put in shows.

-- The last entry of each chain. Its row is locked while the next is appended.
create table audit_heads (
    chain  text   primary key,
    number bigint not null,
    hash   bytea  not null check (length(hash) = 32)
);

create table audit_entries (
    -- `organization <id>` or `account <id>`. Entries outlive what they are about.
    chain      text        not null,
    number     bigint      not null check (number > 0),
    at         timestamptz not null,
    actor      uuid        not null,
    token      bigint      not null,
    address    text        not null,
    request_id text        not null,
    operation  text        not null,
    -- Slug or ref of what the request named.
    subject    text,
    status     smallint    not null,
    -- JSON as it was hashed: `jsonb` would write it differently. Without secrets.
    before     text,
    after      text,
    previous   bytea       not null check (length(previous) = 32),
    hash       bytea       not null check (length(hash) = 32),
    primary key (chain, number)
);

create function audit_keep() returns trigger language plpgsql as $$
begin
    raise exception 'audit entries are never changed' using errcode = 'integrity_constraint_violation';
end
$$;

create trigger audit_keep before update or delete or truncate on audit_entries for each statement execute function audit_keep();
