-- Extensions of every project, as far as the engine has them. The tenant owns those that it could have created itself.
do $$
declare
    wanted text;
begin
    foreach wanted in array array['pgcrypto', 'uuid-ossp'] loop
        if exists (select from pg_available_extensions where name = wanted and installed_version is null) then
            set local role postgres;
            execute format('create extension %I schema extensions', wanted);
            reset role;
        end if;
    end loop;
end
$$;
