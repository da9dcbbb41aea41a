-- Extensions of text search and of other types, without a schema and with one.
create extension if not exists pg_trgm;
create extension if not exists "unaccent" with schema extensions;
create extension if not exists citext with schema public cascade;
create extension if not exists btree_gin;
create extension if not exists btree_gist with schema extensions;
create extension if not exists hstore with schema extensions;
create extension if not exists ltree;
create extension if not exists fuzzystrmatch;
create extension if not exists intarray;
create extension if not exists tablefunc schema extensions;
create extension if not exists "pgstattuple";
create extension if not exists dblink with schema extensions;
create extension if not exists postgres_fdw with schema extensions;
create table public.pages (id int, title text, body tsvector generated always as (to_tsvector('english', title)) stored, handle public.citext unique);
create index pages_title on public.pages using gin (title gin_trgm_ops);
create index pages_body on public.pages using gin (body);
-- migration
create server other foreign data wrapper postgres_fdw options (host 'db.example.com', dbname 'x');
create user mapping for postgres server other options (user 'x', password 'y');
create foreign table public.remote (id int) server other;
comment on extension pg_trgm is 'trigrams';
alter extension pg_trgm set schema extensions;
