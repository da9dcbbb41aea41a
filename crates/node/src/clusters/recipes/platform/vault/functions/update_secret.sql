-- Changes the given properties of a secret.
create or replace function vault.update_secret(
    secret_id uuid, new_secret text default null, new_name text default null, new_description text default null,
    new_key_id uuid default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update vault.secrets
    set secret = case when new_secret is null then secrets.secret else vault._seal(new_secret, secret_id) end,
        name = coalesce(new_name, secrets.name),
        description = coalesce(new_description, secrets.description),
        key_id = coalesce(new_key_id, secrets.key_id),
        updated_at = now()
    where secrets.id = secret_id;
end
$$;
revoke all on function vault.update_secret from public;
grant execute on function vault.update_secret to postgres with grant option;
grant execute on function vault.update_secret to service_role;
