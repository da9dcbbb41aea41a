-- Topic of the channel that a client joins. Policies on `realtime.messages` compare it.
create or replace function realtime.topic() returns text
language sql stable
as $$
    select nullif(current_setting('realtime.topic', true), '')
$$;
alter function realtime.topic() owner to supabase_realtime_admin;
grant execute on function realtime.topic() to postgres, dashboard_user;
