-- Files with their own transactions, and indexes that are built concurrently.
BEGIN;
create type public.level as enum ('low');
create table public.tickets (id int primary key, level public.level);
COMMIT;
-- migration
alter type public.level add value if not exists 'high';
insert into public.tickets values (1, 'low');
-- migration
create index concurrently if not exists tickets_level on public.tickets (level);
drop index concurrently if exists tickets_missing;
vacuum analyze public.tickets;
-- migration
begin;
alter table public.tickets enable row level security;
create policy all_of_them on public.tickets using (true);
commit;
begin;
drop policy if exists all_of_them on public.tickets;
commit;
