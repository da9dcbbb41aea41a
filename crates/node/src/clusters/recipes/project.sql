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

alter database postgres owner to postgres;
alter schema public owner to postgres;
grant usage on schema public to anon, authenticated, service_role;

create schema extensions;
grant usage on schema extensions to public;
grant create on schema extensions to postgres;
alter database postgres set search_path = "$user", public, extensions;
