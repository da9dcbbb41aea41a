-- Indexes of single columns that make a query cheaper, by hypothetical indexes of hypopg. The interface is that of
-- index_advisor 0.2. Runs with the rights of the caller; the query is planned, never executed.
create function @extschema@.index_advisor(query text)
returns table (
    startup_cost_before jsonb, startup_cost_after jsonb, total_cost_before jsonb, total_cost_after jsonb,
    index_statements text[], errors text[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    -- PREPARE has a name for the session; an earlier one is left only by an error.
    prepared constant text := 'index_advisor_statement';
    hypothetical constant text := (
        select quote_ident(namespace.nspname)
        from pg_extension as extension join pg_namespace as namespace on namespace.oid = extension.extnamespace
        where extension.extname = 'hypopg');
    text_of_query text := trim(trailing ';' from btrim(query, E' \t\r\n'));
    parameters integer;
    explain text := 'explain (format json) execute index_advisor_statement';
    plan_before json;
    plan_after json;
    candidate record;
    index_name text;
    statement text;
begin
    if text_of_query ~ ';' then
        errors := array['Query must not contain a semicolon'];
        index_statements := array[]::text[];
        return next;
        return;
    end if;
    begin
        execute format('prepare %I as %s', prepared, text_of_query);
        parameters := (select cardinality(parameter_types) from pg_prepared_statements where name = prepared);
        if parameters > 0 then
            explain := explain || '(' || array_to_string(array_fill('null'::text, array[parameters]), ', ') || ')';
        end if;
        -- Values that are known could make the plan a special case.
        perform set_config('plan_cache_mode', 'force_generic_plan', true);
        execute explain into plan_before;
        execute format('select %s.hypopg_reset()', hypothetical);
        -- Columns of the tables that the plan may use and that no index begins with.
        for candidate in
            select relation.oid::regclass as table_name, attribute.attname
            from pg_class as relation
            join pg_namespace as namespace on namespace.oid = relation.relnamespace
            join pg_attribute as attribute on attribute.attrelid = relation.oid
            where relation.relkind in ('r', 'm', 'p') and relation.relpersistence <> 't'
                and namespace.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
                and attribute.attnum > 0 and not attribute.attisdropped
                and strpos(lower(text_of_query), lower(relation.relname)) > 0
                and exists (
                    select from pg_opclass as class join pg_am as method on method.oid = class.opcmethod
                    where method.amname = 'btree' and class.opcdefault and class.opcintype = attribute.atttypid)
                and not exists (
                    select from pg_index as existing
                    where existing.indrelid = relation.oid and existing.indkey[0] = attribute.attnum)
            limit 200
        loop
            execute format('select count(*) from %s.hypopg_create_index($1)', hypothetical)
                using format('create index on %s using btree (%I)', candidate.table_name, candidate.attname);
        end loop;
        -- The first plan is kept with the prepared statement.
        execute format('deallocate %I', prepared);
        execute format('prepare %I as %s', prepared, text_of_query);
        execute explain into plan_after;
        index_statements := array[]::text[];
        for index_name, statement in
            execute format('select indexname::text, %1$s.hypopg_get_indexdef(indexrelid) from %1$s.hypopg()', hypothetical)
        loop
            if strpos(plan_after::text, index_name) > 0 then
                index_statements := index_statements || statement;
            end if;
        end loop;
        startup_cost_before := plan_before -> 0 -> 'Plan' -> 'Startup Cost';
        startup_cost_after := plan_after -> 0 -> 'Plan' -> 'Startup Cost';
        total_cost_before := plan_before -> 0 -> 'Plan' -> 'Total Cost';
        total_cost_after := plan_after -> 0 -> 'Plan' -> 'Total Cost';
        errors := array[]::text[];
        execute format('select %s.hypopg_reset()', hypothetical);
        execute format('deallocate %I', prepared);
    exception when others then
        errors := array[sqlerrm];
        index_statements := array[]::text[];
        if exists (select from pg_prepared_statements where name = prepared) then
            execute format('deallocate %I', prepared);
        end if;
        execute format('select %s.hypopg_reset()', hypothetical);
    end;
    return next;
end
$$;
