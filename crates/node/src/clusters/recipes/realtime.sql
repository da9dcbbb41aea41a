-- The login role of Realtime and the schema of its own tables. Executed before each start; a role of
-- the tenant with this name is left alone.
do $$
begin
    if not exists (select from pg_roles where rolname = 'gantry_realtime') then
        create role gantry_realtime login replication;
        comment on role gantry_realtime is 'Role of the platform';
    elsif shobj_description('gantry_realtime'::regrole, 'pg_authid') is distinct from 'Role of the platform' then
        raise exception 'role gantry_realtime exists and does not belong to the platform'
            using errcode = 'duplicate_object', hint = 'Rename the role.';
    end if;
end
$$;
grant supabase_realtime_admin, anon, authenticated, service_role to gantry_realtime;
grant create on database postgres to gantry_realtime;
grant usage, create on schema realtime to gantry_realtime;
create schema if not exists _realtime authorization gantry_realtime;
