-- A PREPARE statement that tells whether the row with the primary key among these columns is visible to the current role.
create or replace function realtime.build_prepared_statement_sql(prepared_statement_name text, entity regclass, columns realtime.wal_column[]) returns text
language sql
as $$
    select format('prepare %I as select exists (select from %s where %s)', prepared_statement_name, entity,
        string_agg(format('%I = %L::%s', c.name, c.value #>> '{}', c.type_name), ' and '))
    from unnest(columns) as c
    where c.is_pkey
$$;
alter function realtime.build_prepared_statement_sql(text, regclass, realtime.wal_column[]) owner to supabase_realtime_admin;
grant execute on function realtime.build_prepared_statement_sql(text, regclass, realtime.wal_column[]) to postgres, dashboard_user, anon, authenticated, service_role;
