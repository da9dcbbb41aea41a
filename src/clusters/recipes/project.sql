-- Roles of a project. The superuser exists already and has no password: it gets in by peer only.
create role postgres login createdb createrole replication bypassrls;
-- Gantry's own way to be the owner, by peer only: whoever comes as the owner itself must know its password.
create role gantry_owner login;
grant postgres to gantry_owner;
-- The owner sees and ends the sessions of its database, whoever they belong to; never a superuser's.
grant pg_read_all_stats, pg_signal_backend to postgres;
create role anon nologin;
create role authenticated nologin;
create role service_role nologin bypassrls;
create role authenticator login noinherit;
grant anon, authenticated, service_role to authenticator;
grant anon, authenticated, service_role to postgres;

-- Sees every row, as the read-only query endpoint promises; writes none.
create role supabase_read_only_user login bypassrls;
grant pg_read_all_data to supabase_read_only_user;
alter role supabase_read_only_user set default_transaction_read_only = on;

alter database postgres owner to postgres;
alter schema public owner to postgres;
grant usage on schema public to anon, authenticated, service_role;

create schema extensions;
grant usage on schema extensions to public;
grant create on schema extensions to postgres;
alter database postgres set search_path = "$user", public, extensions;

-- Everybody may leave temporary tables, large objects and WAL messages behind by default. The reader may not: what was
-- open to all is now open to every other role there is. The owner can pass it on to roles of its own.
revoke temporary on database postgres from public;
grant temporary on database postgres to anon, authenticated, service_role, authenticator;
do $$
declare
    writer regprocedure;
begin
    for writer in
        select oid from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname in (
            'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_open', 'lo_put', 'lo_truncate', 'lo_truncate64', 'lo_unlink', 'lowrite',
            'pg_logical_emit_message')
    loop
        execute format('revoke execute on function %s from public', writer);
        execute format('grant execute on function %s to anon, authenticated, service_role, authenticator', writer);
        execute format('grant execute on function %s to postgres with grant option', writer);
    end loop;
end
$$;
