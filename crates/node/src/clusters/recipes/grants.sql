-- What the roles of a project may do. Run in the template, and again, as often as this text changes, in every project there is:
-- it says how things are, not how they change.
grant pg_read_all_data to supabase_read_only_user;
alter role supabase_read_only_user set default_transaction_read_only = on;

-- Everybody may leave temporary tables, large objects and WAL messages behind by default. The reader may not: what was
-- open to all is now open to every other role there is. The owner can pass it on to roles of its own.
revoke temporary on database postgres from public;
grant temporary on database postgres to anon, authenticated, service_role, authenticator;
do $$
declare
    writer regprocedure;
begin
    for writer in
        select oid from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname in (
            'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_open', 'lo_put', 'lo_truncate', 'lo_truncate64', 'lo_unlink', 'lowrite',
            'pg_logical_emit_message')
    loop
        execute format('revoke execute on function %s from public', writer);
        execute format('grant execute on function %s to anon, authenticated, service_role, authenticator', writer);
        execute format('grant execute on function %s to postgres with grant option', writer);
    end loop;
end
$$;

-- Before PostgreSQL 16 a role that may create roles can join every role that is not a superuser, also those that read and write
-- files of the server and run programs. There the owner creates no roles, and memberships that were taken this way end.
do $$
declare
    held record;
begin
    if current_setting('server_version_num')::integer >= 160000 then
        return;
    end if;
    for held in select rolname from pg_roles where rolcreaterole and not rolsuper loop
        execute format('alter role %I nocreaterole', held.rolname);
    end loop;
    for held in
        select reserved.rolname as reserved, member.rolname as member
        from pg_auth_members
        join pg_roles reserved on reserved.oid = roleid
        join pg_roles member on member.oid = pg_auth_members.member
        where reserved.rolname like 'pg\_%' and (reserved.rolname, member.rolname) not in (
            ('pg_read_all_stats', 'postgres'), ('pg_signal_backend', 'postgres'), ('pg_monitor', 'postgres'),
            ('pg_read_all_data', 'supabase_read_only_user'))
            -- The three roles that are members of pg_monitor by themselves.
            and member.rolname not like 'pg\_%'
    loop
        execute format('revoke %I from %I', held.reserved, held.member);
    end loop;
end
$$;
