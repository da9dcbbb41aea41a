-- Role of this name.
create or replace function realtime.to_regrole(role_name text) returns regrole
language sql immutable
as $$
    select role_name::regrole
$$;
alter function realtime.to_regrole(text) owner to supabase_realtime_admin;
grant execute on function realtime.to_regrole(text) to postgres, dashboard_user, anon, authenticated, service_role;
