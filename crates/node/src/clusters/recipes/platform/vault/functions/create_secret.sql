-- Stores a secret and returns its id. `new_key_id` has no effect: a project has one key.
create or replace function vault.create_secret(
    new_secret text, new_name text default null, new_description text default '', new_key_id uuid default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    new_id uuid := gen_random_uuid();
begin
    insert into vault.secrets (id, name, description, secret, key_id)
    values (new_id, new_name, coalesce(new_description, ''), vault._seal(new_secret, new_id), new_key_id);
    return new_id;
end
$$;
revoke all on function vault.create_secret from public;
grant execute on function vault.create_secret to postgres with grant option;
grant execute on function vault.create_secret to service_role;
