-- Statements that cannot run in a transaction.
create table public.events (id bigint generated always as identity, kind text, at timestamptz default now());
insert into public.events (kind) select 'k' || i from generate_series(1, 100) as i;
-- migration
create index concurrently if not exists events_kind_idx on public.events (kind);
create index concurrently events_at_idx on public.events (at);
-- migration
drop index concurrently events_at_idx;
vacuum analyze public.events;
-- migration
create type public.stage as enum ('new');
-- migration
alter type public.stage add value 'done';
create table public.jobs (stage public.stage default 'done');
insert into public.jobs default values;
