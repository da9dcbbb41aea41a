-- Whether `val_1 op val_2` holds for values of a type. With `in`, the second value is a list such as `{1,2}`.
create or replace function realtime.check_equality_op(op realtime.equality_op, type_ regtype, val_1 text, val_2 text) returns boolean
language plpgsql immutable
as $$
declare
    comparison text := case op
        when 'eq' then '%1$L::%3$s = %2$L::%3$s'
        when 'neq' then '%1$L::%3$s <> %2$L::%3$s'
        when 'lt' then '%1$L::%3$s < %2$L::%3$s'
        when 'lte' then '%1$L::%3$s <= %2$L::%3$s'
        when 'gt' then '%1$L::%3$s > %2$L::%3$s'
        when 'gte' then '%1$L::%3$s >= %2$L::%3$s'
        when 'in' then '%1$L::%3$s = any (%2$L::%3$s[])'
        when 'like' then '%1$L::text like %2$L'
        when 'ilike' then '%1$L::text ilike %2$L'
        when 'match' then '%1$L::text ~ %2$L'
        when 'imatch' then '%1$L::text ~* %2$L'
        when 'isdistinct' then '%1$L::%3$s is distinct from %2$L::%3$s'
        when 'is' then case lower(val_2)
            when 'null' then '%1$L::%3$s is null'
            when 'true' then '%1$L::boolean is true'
            when 'false' then '%1$L::boolean is false'
            when 'unknown' then '%1$L::boolean is unknown'
        end
    end;
    holds boolean;
begin
    if comparison is null then
        raise exception 'operator % cannot compare with %', op, val_2;
    end if;
    execute 'select ' || format(comparison, val_1, val_2, type_) into holds;
    return holds;
end
$$;
alter function realtime.check_equality_op(realtime.equality_op, regtype, text, text) owner to supabase_realtime_admin;
grant execute on function realtime.check_equality_op(realtime.equality_op, regtype, text, text) to postgres, dashboard_user, anon, authenticated, service_role;

-- The same, or its opposite if `negate` is true.
create or replace function realtime.check_equality_op(op realtime.equality_op, type_ regtype, val_1 text, val_2 text, negate boolean) returns boolean
language plpgsql stable
as $$
declare
    holds boolean := realtime.check_equality_op(op, type_, val_1, val_2);
begin
    return case when negate then not holds else holds end;
end
$$;
alter function realtime.check_equality_op(realtime.equality_op, regtype, text, text, boolean) owner to supabase_realtime_admin;
grant execute on function realtime.check_equality_op(realtime.equality_op, regtype, text, text, boolean) to postgres, dashboard_user, anon, authenticated, service_role;
