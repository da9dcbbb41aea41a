-- Why: authorities can look by DNS, at text records in a zone of the operator's. What was written there has to be taken away again, whatever
-- became of the order; and the operator's own name, `*.<domain>`, gets its certificate that way, so orders and certificates are no longer only
-- of names that projects have.

-- Text records in the zone, from before they are written until they are taken away.
create table acme_answers (
    name        text        not null,
    value       text        not null,
    -- For whose order. No reference: the record outlives it.
    hostname_id uuid        not null,
    -- Whether it was written.
    written     boolean     not null default false,
    -- When it is next tried to take it away, once there is no order any more.
    not_before  timestamptz not null,
    created_at  timestamptz not null,
    primary key (name, value)
);
create index acme_answers_hostname_idx on acme_answers (hostname_id);

-- Names of the operator's own.
create table wildcards (
    name       text        primary key,
    id         uuid        not null constraint wildcards_id_key unique,
    -- Why the last order failed, and how many did in a row.
    refusal    text,
    attempts   integer     not null default 0,
    not_before timestamptz not null
);

alter table acme_orders drop constraint acme_orders_hostname_id_fkey;
alter table hostname_certificates drop constraint hostname_certificates_hostname_id_fkey;
-- In their place: what belongs to a hostname goes with it.
create function forget_hostname() returns trigger language plpgsql as $$
begin
    delete from acme_orders where hostname_id = old.id;
    delete from hostname_certificates where hostname_id = old.id;
    return null;
end $$;
create trigger custom_hostnames_forget after delete on custom_hostnames for each row execute function forget_hostname();
