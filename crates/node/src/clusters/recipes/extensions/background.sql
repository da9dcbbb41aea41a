-- Background workers, such as the scheduler of pg_cron, have sessions as superuser in the owner's database. Settings apply
-- there that the owner attached to the database, such as a search path with operators of the owner. A setting of the role
-- comes before them, in every database.
alter role supabase_admin set search_path = pg_catalog;

-- The owner can create functions in this schema. A replaced function would keep its owner.
do $$
declare
    foreign_function regprocedure;
begin
    for foreign_function in
        select p.oid from pg_proc p join pg_roles r on r.oid = p.proowner
        where p.pronamespace = 'extensions'::regnamespace and not r.rolsuper
            and p.proname in ('explain_missing_extension', 'grant_extension_access', 'check_cron_job', 'move_extension')
    loop
        execute format('drop function %s cascade', foreign_function);
    end loop;
end
$$;
