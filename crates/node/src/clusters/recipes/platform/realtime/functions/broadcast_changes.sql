-- Sends the change of a row as a broadcast message. Called by row triggers of the project's tables.
create or replace function realtime.broadcast_changes(topic_name text, event_name text, operation text, table_name text, table_schema text, new record, old record,
    level text default 'ROW') returns void
language plpgsql
as $$
begin
    if level = 'STATEMENT' then
        raise exception 'function can only be triggered for each row, not for each statement';
    end if;
    perform realtime.send(
        jsonb_build_object(
            'record', to_jsonb(new),
            'old_record', to_jsonb(old),
            'operation', operation,
            'table', table_name,
            'schema', table_schema),
        event_name,
        topic_name);
exception when others then
    raise exception 'Failed to process the row: %', sqlerrm;
end
$$;
alter function realtime.broadcast_changes(text, text, text, text, text, record, record, text) owner to supabase_realtime_admin;
grant execute on function realtime.broadcast_changes(text, text, text, text, text, record, record, text) to postgres, dashboard_user;
