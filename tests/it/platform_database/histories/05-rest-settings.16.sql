-- Settings of the Data API and of its roles.
alter role authenticator set pgrst.db_schemas = 'public, api';
alter role authenticator set pgrst.db_aggregates_enabled = 'true';
alter role authenticator set pgrst.db_pre_request = 'public.check_request';
alter role anon set statement_timeout = '10s';
alter role authenticated set statement_timeout = '20s';
notify pgrst, 'reload config';
-- migration
alter role authenticator reset pgrst.db_pre_request;
create role reader;
grant reader to authenticator;
grant anon to reader;
