-- The interface of pg_graphql 1.5, so that applications with comment directives and grants can be installed. Queries are not
-- executed: every one gets an error in the form of the GraphQL specification.
do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname operator(pg_catalog.=) 'graphql') then
        create schema graphql;
    end if;
end
$$;

create sequence graphql.seq_schema_version as integer cycle;

create function graphql.get_schema_version() returns integer
language sql security definer
set search_path = pg_catalog, pg_temp
as $$ select last_value::integer from graphql.seq_schema_version $$;

-- The directive in a comment, such as `@graphql({"name": "Account"})`.
create function graphql.comment_directive(comment_ text) returns jsonb
language sql immutable
as $$ select coalesce((regexp_match(comment_, '@graphql\((.+)\)'))[1], '{}')::jsonb $$;

create function graphql.exception(message text) returns text
language plpgsql
as $$
begin
    raise exception using errcode = '22000', message = message;
end
$$;

create function graphql.resolve(
    query text, variables jsonb default '{}', "operationName" text default null, extensions jsonb default null
) returns jsonb
language sql stable
as $$
    select jsonb_build_object('data', null, 'errors', jsonb_build_array(jsonb_build_object(
        'message', 'GraphQL is not executed by this server; use the REST API',
        'extensions', jsonb_build_object('code', 'NOT_IMPLEMENTED'))))
$$;

create function graphql._internal_resolve(
    query text, variables jsonb default '{}', "operationName" text default null, extensions jsonb default null
) returns jsonb
language sql stable
as $$ select graphql.resolve(query, variables, "operationName", extensions) $$;

grant usage on schema graphql to postgres with grant option;
grant usage on schema graphql to anon, authenticated, service_role;
