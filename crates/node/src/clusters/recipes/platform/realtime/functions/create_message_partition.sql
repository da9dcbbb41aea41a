-- Creates today's partition of `realtime.messages` unless it exists, and drops partitions that are older than three days. The
-- realtime service does the same ahead of time where it runs.
create or replace function realtime.create_message_partition() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    today date := (now() at time zone 'UTC')::date;
    partition text := 'messages_' || to_char(today, 'YYYY_MM_DD');
    expired name;
begin
    if to_regclass('realtime.' || partition) is not null then
        return;
    end if;
    -- Transactions that send their first message of a day at the same time create one partition.
    perform pg_advisory_xact_lock(hashtext('realtime.messages'));
    if to_regclass('realtime.' || partition) is not null then
        return;
    end if;
    execute format('create table realtime.%I partition of realtime.messages for values from (%L) to (%L)',
        partition, today, today + 1);
    for expired in
        select c.relname
        from pg_class c
        join pg_inherits i on i.inhrelid = c.oid
        where i.inhparent = 'realtime.messages'::regclass
            and c.relname ~ '^messages_\d{4}_\d{2}_\d{2}$'
            and to_date(right(c.relname, 10), 'YYYY_MM_DD') < today - 3
    loop
        execute format('drop table realtime.%I', expired);
    end loop;
end
$$;
alter function realtime.create_message_partition() owner to supabase_realtime_admin;
grant execute on function realtime.create_message_partition() to postgres, dashboard_user, anon, authenticated, service_role;
