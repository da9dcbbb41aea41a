-- Why: who has a hostname next should not have to fear a certificate that somebody else's server holds the key of. What was certified for a
-- hostname that is deleted, or of a project that is, is revoked: after the deletion, which waits for no authority.

create table acme_revocations (
    id         bigint      primary key generated always as identity,
    -- Whose certificate it is.
    directory  text        not null,
    chain      text        not null,
    not_after  timestamptz not null,
    attempts   integer     not null default 0,
    not_before timestamptz not null default '-infinity'
);

-- Whoever deletes a hostname: its project's members, the keeper, whoever deletes the project.
create or replace function forget_hostname() returns trigger language plpgsql as $$
begin
    insert into acme_revocations (directory, chain, not_after)
        select directory, chain, not_after from hostname_certificates where hostname_id = old.id and directory is not null;
    delete from acme_orders where hostname_id = old.id;
    delete from hostname_certificates where hostname_id = old.id;
    return null;
end $$;
