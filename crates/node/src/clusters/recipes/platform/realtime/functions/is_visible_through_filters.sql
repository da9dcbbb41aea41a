-- Whether a row with these columns passes all filters of a subscription.
create or replace function realtime.is_visible_through_filters(columns realtime.wal_column[], filters realtime.user_defined_filter[]) returns boolean
language sql stable
as $$
    select coalesce(bool_and(coalesce(
        realtime.check_equality_op(
            f.op, coalesce(c.type_oid::regtype, c.type_name::regtype), c.value #>> '{}', f.value, coalesce(f.negate, false)),
        false)), true)
    from unnest(filters) as f
    left join unnest(columns) as c on c.name = f.column_name
$$;
alter function realtime.is_visible_through_filters(realtime.wal_column[], realtime.user_defined_filter[]) owner to supabase_realtime_admin;
grant execute on function realtime.is_visible_through_filters(realtime.wal_column[], realtime.user_defined_filter[]) to postgres, dashboard_user, anon, authenticated, service_role;
