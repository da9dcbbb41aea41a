-- Trigger: accepts a subscription only if its role may read the columns that it filters by and selects, and each value fits its
-- column. Filters are stored in one order, so that equal subscriptions are recognized.
create or replace function realtime.subscription_check_filters() returns trigger
language plpgsql
as $$
declare
    filter realtime.user_defined_filter;
    selected text;
    column_type regtype;
    readable text[];
    -- The generated column claims_role is not computed yet.
    subscriber regrole := realtime.to_regrole(new.claims ->> 'role');
begin
    select coalesce(array_agg(a.attname::text), '{}') into readable
    from pg_attribute a
    where a.attrelid = new.entity and a.attnum > 0 and not a.attisdropped
        and has_column_privilege(subscriber, new.entity, a.attnum, 'select');
    foreach selected in array coalesce(new.selected_columns, '{}') loop
        if selected <> all (readable) then
            raise exception 'invalid column for select %', selected;
        end if;
    end loop;
    foreach filter in array new.filters loop
        if filter.column_name <> all (readable) then
            raise exception 'invalid column for filter %', filter.column_name;
        end if;
        select a.atttypid::regtype into column_type
        from pg_attribute a
        where a.attrelid = new.entity and a.attname = filter.column_name;
        if filter.op = 'in' then
            if cardinality(filter.value::text[]) > 100 then
                raise exception 'too many values for `in` filter. Maximum 100';
            end if;
            execute format('select %L::%s[]', filter.value, column_type);
        elsif filter.op not in ('is', 'like', 'ilike', 'match', 'imatch') then
            perform realtime.cast(filter.value, column_type);
        end if;
    end loop;
    new.filters = coalesce(
        (select array_agg(f order by f.column_name, f.op, f.value) from unnest(new.filters) as f),
        '{}');
    return new;
end
$$;
alter function realtime.subscription_check_filters() owner to supabase_realtime_admin;
grant execute on function realtime.subscription_check_filters() to postgres, dashboard_user, anon, authenticated, service_role;
