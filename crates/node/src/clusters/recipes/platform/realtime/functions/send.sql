-- Sends a broadcast message to the clients of a topic when the transaction commits. An error is raised as a warning, so that it
-- does not undo the change that the message tells about.
create or replace function realtime.send(payload jsonb, event text, topic text, private boolean default true) returns void
language plpgsql
as $$
begin
    perform realtime.create_message_partition();
    perform set_config('realtime.topic', topic, true);
    insert into realtime.messages (payload, event, topic, private, extension)
    values (payload, event, topic, private, 'broadcast');
exception when others then
    raise warning 'ErrorSendingBroadcastMessage: %', sqlerrm;
end
$$;
alter function realtime.send(jsonb, text, text, boolean) owner to supabase_realtime_admin;
grant execute on function realtime.send(jsonb, text, text, boolean) to postgres, dashboard_user;
