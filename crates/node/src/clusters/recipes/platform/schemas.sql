-- Schemas of the platform, with the roles that may use them.
create schema if not exists _realtime authorization postgres;
create schema if not exists supabase_migrations authorization postgres;
create schema if not exists pgbouncer authorization pgbouncer;
create schema if not exists graphql;
create schema if not exists supabase_functions;
-- For the functions of database webhooks.
grant all on schema supabase_functions to postgres;

create schema if not exists auth;
grant usage on schema auth to anon, authenticated, service_role;
grant all on schema auth to supabase_auth_admin, dashboard_user, postgres;

create schema if not exists storage;
grant usage on schema storage to anon, authenticated, service_role;
grant all on schema storage to supabase_storage_admin, dashboard_user, postgres;

create schema if not exists realtime;
grant usage on schema realtime to anon, authenticated, service_role;
grant usage on schema realtime to postgres with grant option;
grant all on schema realtime to supabase_realtime_admin with grant option;

create schema if not exists vault;
grant usage on schema vault to service_role;
grant usage on schema vault to postgres with grant option;

create schema if not exists graphql_public;
grant usage on schema graphql_public to anon, authenticated, service_role, postgres;

grant usage on schema extensions to anon, authenticated, service_role;
grant all on schema extensions to dashboard_user;

-- Objects that the services add later.
alter default privileges for role supabase_auth_admin in schema auth grant all on tables to postgres, dashboard_user;
alter default privileges for role supabase_auth_admin in schema auth grant all on sequences to postgres, dashboard_user;
alter default privileges for role supabase_auth_admin in schema auth grant all on functions to postgres, dashboard_user;
alter default privileges for role supabase_admin in schema realtime grant all on tables to postgres, dashboard_user;
alter default privileges for role supabase_admin in schema realtime grant all on sequences to postgres, dashboard_user;
alter default privileges for role supabase_admin in schema realtime grant all on functions to postgres, dashboard_user;
