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
