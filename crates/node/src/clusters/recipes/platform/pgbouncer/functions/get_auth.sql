-- The SCRAM verifier of a role, for the pooler alone. Superusers cannot log in through it, and a role whose password has expired has
-- no verifier.
create or replace function pgbouncer.get_auth(p_usename text)
    returns table (username text, password text)
    language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select rolname::text, case when rolvaliduntil < now() then null else rolpassword end
    from pg_authid
    where rolname = p_usename and rolcanlogin and not rolsuper and rolpassword like 'SCRAM-SHA-256$%'
$$;
revoke all on function pgbouncer.get_auth(text) from public;
grant execute on function pgbouncer.get_auth(text) to pgbouncer;
