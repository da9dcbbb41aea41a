-- Sends a broadcast message of bytes, as `realtime.send` does one of JSON.
create or replace function realtime.send_binary(payload bytea, event text, topic text, private boolean default true) returns void
language plpgsql
as $$
begin
    perform realtime.create_message_partition();
    perform set_config('realtime.topic', topic, true);
    insert into realtime.messages (binary_payload, event, topic, private, extension)
    values (payload, event, topic, private, 'broadcast');
exception when others then
    raise warning 'ErrorSendingBroadcastMessage: %', sqlerrm;
end
$$;
alter function realtime.send_binary(bytea, text, text, boolean) owner to supabase_realtime_admin;
grant execute on function realtime.send_binary(bytea, text, text, boolean) to postgres, dashboard_user;
