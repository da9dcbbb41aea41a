-- Scheduled jobs that call functions and clean up.
create extension if not exists pg_cron with schema pg_catalog;
create extension if not exists pg_net;
grant usage on schema cron to postgres;
grant all privileges on all tables in schema cron to postgres;
-- migration
select cron.schedule('nightly', '0 3 * * *', $$ delete from cron.job_run_details where end_time < now() - interval '7 days' $$);
select cron.schedule('invoke', '*/5 * * * *', $$
    select net.http_post(url := 'https://example.com/functions/v1/tick', headers := '{"Content-Type": "application/json"}'::jsonb) as id
$$);
do $$
begin
    if exists (select 1 from cron.job where jobname = 'nightly') then
        perform cron.unschedule('nightly');
    end if;
end
$$;
