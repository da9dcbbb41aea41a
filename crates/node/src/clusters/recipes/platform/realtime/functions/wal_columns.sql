-- Columns of a decoded change: those in its array `part`, `columns` or `identity`, with whether they belong to the primary key and
-- whether the subscriber may read them.
create or replace function realtime.wal_columns(wal jsonb, part text, entity regclass, subscriber regrole) returns realtime.wal_column[]
language sql stable
as $$
    select coalesce(array_agg((
        c ->> 'name',
        c ->> 'type',
        (c ->> 'typeoid')::oid,
        case when c ->> 'value' is null then 'null'::jsonb else realtime.cast(c ->> 'value', (c ->> 'typeoid')::oid::regtype) end,
        exists (select from jsonb_array_elements(wal -> 'pk') as key where key ->> 'name' = c ->> 'name'),
        has_column_privilege(subscriber, entity, c ->> 'name', 'select')
    )::realtime.wal_column), '{}')
    from jsonb_array_elements(wal -> part) as c
$$;
alter function realtime.wal_columns(jsonb, text, regclass, regrole) owner to supabase_realtime_admin;
grant execute on function realtime.wal_columns(jsonb, text, regclass, regrole) to postgres, dashboard_user;
