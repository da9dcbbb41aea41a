-- A change that wal2json (format 2) decoded, once for each role with subscriptions to its table: the message to send, and the
-- subscriptions whose filters and whose row level security policies let them see it. A deleted row cannot be checked against
-- policies; of it, only the primary key is sent when the table has row level security.
create or replace function realtime.apply_rls(wal jsonb, max_record_bytes integer default 1024 * 1024) returns setof realtime.wal_rls
language plpgsql
as $$
declare
    entity_name regclass := format('%I.%I', wal ->> 'schema', wal ->> 'table')::regclass;
    change realtime.action := case wal ->> 'action' when 'I' then 'INSERT' when 'U' then 'UPDATE' when 'D' then 'DELETE' else 'ERROR' end;
    has_rls boolean := (select relrowsecurity from pg_class where oid = entity_name);
    too_large boolean := octet_length(wal::text) > max_record_bytes;
    previous_role text := current_setting('role');
    subscriber regrole;
    columns realtime.wal_column[];
    old_columns realtime.wal_column[];
    compared realtime.wal_column[];
    candidate realtime.subscription;
    visible_to uuid[];
    is_visible boolean;
    message jsonb;
begin
    for subscriber in select distinct s.claims_role from realtime.subscription s where s.entity = entity_name loop
        columns := realtime.wal_columns(wal, 'columns', entity_name, subscriber);
        old_columns := realtime.wal_columns(wal, 'identity', entity_name, subscriber);
        compared := case when change = 'DELETE' then old_columns else columns end;
        message := jsonb_build_object(
            'schema', wal ->> 'schema',
            'table', wal ->> 'table',
            'type', change,
            'commit_timestamp', wal ->> 'timestamp',
            'columns', coalesce(
                (select jsonb_agg(jsonb_build_object('name', c.name, 'type', c.type_name)) from unnest(compared) as c where c.is_selectable),
                '[]'));
        if not exists (select from unnest(compared) as c where c.is_pkey) then
            return next (message, has_rls, array(
                select s.subscription_id from realtime.subscription s where s.entity = entity_name and s.claims_role = subscriber),
                array['Error 400: Bad Request, no primary key'])::realtime.wal_rls;
            continue;
        end if;
        if change in ('INSERT', 'UPDATE') then
            message := message || jsonb_build_object('record', coalesce(
                (select jsonb_object_agg(c.name, c.value) from unnest(columns) as c
                 where c.is_selectable and (not too_large or octet_length(c.value::text) <= 64)), '{}'));
        end if;
        if change in ('UPDATE', 'DELETE') then
            message := message || jsonb_build_object('old_record', coalesce(
                (select jsonb_object_agg(c.name, c.value) from unnest(old_columns) as c
                 where c.is_selectable and (c.is_pkey or not has_rls) and (not too_large or octet_length(c.value::text) <= 64)), '{}'));
        end if;
        if has_rls and change <> 'DELETE' then
            if exists (select from pg_prepared_statements where name = 'realtime_row_visible') then
                deallocate realtime_row_visible;
            end if;
            execute realtime.build_prepared_statement_sql('realtime_row_visible', entity_name, columns);
        end if;
        visible_to := '{}';
        for candidate in
            select s.* from realtime.subscription s
            where s.entity = entity_name and s.claims_role = subscriber
                and coalesce(s.action_filter, '*') in ('*', change::text)
                and realtime.is_visible_through_filters(compared, s.filters)
        loop
            is_visible := true;
            if has_rls and change <> 'DELETE' then
                perform set_config('request.jwt.claims', candidate.claims::text, true), set_config('role', subscriber::text, true);
                execute 'execute realtime_row_visible' into is_visible;
                perform set_config('role', previous_role, true);
            end if;
            if is_visible then
                visible_to := visible_to || candidate.subscription_id;
            end if;
        end loop;
        return next (message, has_rls, visible_to,
            case when too_large then array['Error 413: Payload Too Large'] else '{}' end)::realtime.wal_rls;
    end loop;
end
$$;
alter function realtime.apply_rls(jsonb, integer) owner to supabase_realtime_admin;
grant execute on function realtime.apply_rls(jsonb, integer) to postgres, dashboard_user, anon, authenticated, service_role;
