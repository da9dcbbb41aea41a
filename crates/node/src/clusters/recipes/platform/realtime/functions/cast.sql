-- A value in its text form as JSON of its type.
create or replace function realtime.cast(val text, type_ regtype) returns jsonb
language plpgsql immutable
as $$
declare
    converted jsonb;
begin
    if type_ = 'bytea'::regtype then
        return to_jsonb(val);
    end if;
    execute format('select to_jsonb(%L::%s)', val, type_) into converted;
    return converted;
end
$$;
alter function realtime.cast(text, regtype) owner to supabase_realtime_admin;
grant execute on function realtime.cast(text, regtype) to postgres, dashboard_user, anon, authenticated, service_role;
