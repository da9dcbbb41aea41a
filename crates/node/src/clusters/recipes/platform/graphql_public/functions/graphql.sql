-- The GraphQL endpoint of the Data API, which the extension pg_graphql executes.
create or replace function graphql_public.graphql(
    "operationName" text default null, query text default null, variables jsonb default null, extensions jsonb default null
) returns jsonb
language plpgsql
as $$
begin
    if not exists (select from pg_extension where extname = 'pg_graphql') then
        return jsonb_build_object('errors', jsonb_build_array(jsonb_build_object(
            'message', 'pg_graphql extension is not enabled.')));
    end if;
    return graphql.resolve(
        query => query, variables => coalesce(variables, '{}'), "operationName" => "operationName", extensions => extensions);
end
$$;
grant execute on function graphql_public.graphql(text, text, jsonb, jsonb) to postgres, anon, authenticated, service_role;
