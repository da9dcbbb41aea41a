-- Tests in migrations, as some teams keep them.
create extension if not exists pgtap with schema extensions;
-- migration
begin;
select plan(3);
select has_table('auth', 'users', 'users exist');
select has_column('storage', 'objects', 'bucket_id', 'objects have a bucket');
select isnt_empty('select 1 from pg_policies union select 1', 'queries work');
select * from finish();
rollback;
