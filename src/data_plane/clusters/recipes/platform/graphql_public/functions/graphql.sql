-- The GraphQL endpoint of the Data API. Replaced by the extension pg_graphql where it is created.
create or replace function graphql_public.graphql(
    "operationName" text default null, query text default null, variables jsonb default null, extensions jsonb default null
) returns jsonb
language sql
as $$
    select jsonb_build_object('errors', jsonb_build_array(jsonb_build_object(
        'message', 'pg_graphql extension is not enabled.')))
$$;
grant execute on function graphql_public.graphql(text, text, jsonb, jsonb) to postgres, anon, authenticated, service_role;
