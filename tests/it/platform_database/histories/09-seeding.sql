-- Data that is loaded without triggers and foreign keys.
create table public.parents (id int primary key);
create table public.children (id int primary key, parent int references public.parents);
-- migration
set session_replication_role = replica;
insert into public.children values (1, 1);
insert into public.parents values (1);
set session_replication_role = origin;
-- migration
begin transaction;
insert into public.children values (2, 1);
end;
