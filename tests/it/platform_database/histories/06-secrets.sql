-- Secrets in the vault, read by functions.
create extension if not exists supabase_vault with schema vault;
-- migration
select vault.create_secret('https://example.com', 'project_url');
select vault.create_secret('anon-key', 'anon_key', 'Key for the functions');
create function public.project_url() returns text language sql security definer set search_path = '' as $$
    select decrypted_secret from vault.decrypted_secrets where name = 'project_url'
$$;
do $$
begin
    assert public.project_url() = 'https://example.com';
    perform vault.update_secret((select id from vault.secrets where name = 'project_url'), 'https://example.org');
    assert public.project_url() = 'https://example.org';
end
$$;
