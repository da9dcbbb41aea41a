-- Privileges in bulk, as templates of applications grant them, and a role for reports.
grant usage on schema auth, storage, realtime, vault, extensions, graphql_public, supabase_functions to service_role;
grant all on all tables in schema auth to service_role;
grant all on all functions in schema auth to service_role, authenticated;
grant all on all tables in schema storage to service_role;
grant all on all routines in schema storage to service_role;
grant all on all functions in schema realtime to service_role;
grant all on all tables in schema extensions to service_role;
grant execute on all functions in schema extensions to anon, authenticated, service_role;
grant all on all functions in schema vault to service_role;
grant all on all tables in schema vault to service_role;
alter default privileges in schema auth grant all on tables to service_role;
revoke all on all tables in schema auth from anon;
-- migration
create role reporting with login password 'a password of the reports' noinherit;
grant usage on schema public to reporting;
alter role reporting set statement_timeout = '2min';
select extensions.pg_stat_statements_reset();
-- migration
revoke usage on schema public from reporting;
drop role reporting;
alter role postgres set statement_timeout = '5min';
alter database postgres set timezone to 'UTC';
