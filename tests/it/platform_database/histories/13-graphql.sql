-- The interface of GraphQL: extension, directives, grants, and the function of the Data API.
create schema if not exists graphql;
create extension if not exists "pg_graphql" with schema "graphql";
create table public.account (id serial primary key, email text, created_at timestamptz default now());
comment on table public.account is e'@graphql({"name": "User", "totalCount": {"enabled": true}})';
comment on schema public is e'@graphql({"inflect_names": true})';
grant usage on schema graphql to postgres, anon, authenticated, service_role;
grant all on function graphql.resolve to postgres, anon, authenticated, service_role;
alter default privileges in schema public grant all on tables to anon, authenticated, service_role;
-- migration
create function public._email_domain(rec public.account) returns text immutable strict language sql
    as $$ select split_part(rec.email, '@', 2) $$;
comment on function public._email_domain is '@graphql({"name": "domain"})';
select graphql.resolve('query { accountCollection { edges { node { id } } } }');
drop extension if exists pg_graphql;
create extension pg_graphql;
