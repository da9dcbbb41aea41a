-- Tables whose changes the realtime service sends to subscribers. The tenant adds tables to the first one.
do $$
begin
    if not exists (select from pg_publication where pubname = 'supabase_realtime') then
        create publication supabase_realtime;
        alter publication supabase_realtime owner to postgres;
    end if;
    if not exists (select from pg_publication where pubname = 'supabase_realtime_messages_publication') then
        create publication supabase_realtime_messages_publication for table realtime.messages;
    end if;
end
$$;
