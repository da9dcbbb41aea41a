-- Queues of background work, with access for the service role.
create extension if not exists pgmq;
select pgmq.create('emails');
select pgmq.create_unlogged('analytics');
grant usage on schema pgmq to service_role;
grant select, insert, update, delete on all tables in schema pgmq to service_role;
grant execute on all functions in schema pgmq to service_role;
alter default privileges in schema pgmq grant all on tables to service_role;
-- migration
alter table pgmq.q_emails enable row level security;
create policy "Service role" on pgmq.q_emails for all to service_role using (true) with check (true);
create or replace function public.enqueue_email(recipient text) returns bigint
language plpgsql security definer set search_path = '' as $$
declare
    id bigint;
begin
    select * into id from pgmq.send('emails', jsonb_build_object('to', recipient), 0);
    return id;
end
$$;
revoke all on function public.enqueue_email(text) from public, anon;
create function public.queue_pop(queue_name text) returns setof pgmq.message_record
language sql security definer set search_path = '' as $$ select * from pgmq.pop(queue_name) $$;
select public.enqueue_email('a@example.com');
do $$
declare
    message pgmq.message_record;
begin
    select * into message from pgmq.read(queue_name := 'emails', vt := 30, qty := 1);
    assert message.message ->> 'to' = 'a@example.com' and message.read_ct = 1;
    perform pgmq.archive('emails', message.msg_id);
    assert (select count(*) from pgmq.a_emails) = 1;
end
$$;
select pgmq.drop_queue('analytics');
