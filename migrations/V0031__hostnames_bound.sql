-- Why: what one organization, or one hostname, asks of an authority must not use up what that allows for all of them. And the operator
-- must be able to say which names this server does not serve, whoever proves them.

-- Of orders from before this there is only the time.
alter table acme_begun add column host text;
alter table acme_begun add column organization_id bigint;

-- These names and all below them.
create table blocked_hostnames (
    name       text        primary key,
    created_at timestamptz not null
);
create trigger blocked_hostnames_announce after insert or update or delete on blocked_hostnames
    for each statement execute function announce();

create function is_blocked(host text) returns boolean language sql stable as $$
    select exists (select from blocked_hostnames b where host = b.name or right(host, length(b.name) + 1) = '.' || b.name)
$$;

-- For how long clients are to use nothing but HTTPS for a hostname: its owner's to say. Null: nothing is said.
alter table custom_hostnames add column hsts_secs integer check (hsts_secs between 1 and 63072000);
