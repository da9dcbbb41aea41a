-- Functions of the application in the schema auth, views of accounts, and their deletion.
create or replace function auth.tenant() returns text language sql stable as $$ select auth.jwt() ->> 'tenant' $$;
grant execute on function auth.tenant() to authenticated;
create view public.people with (security_invoker = on) as select id, email, raw_user_meta_data ->> 'name' as name from auth.users;
create or replace function public.delete_account() returns void language sql security definer set search_path = ''
    as 'delete from auth.users where id = auth.uid()';
create type public.session_level as (level auth.aal_level, at timestamptz);
create function public.audit() returns trigger language plpgsql security definer as $$ begin return coalesce(new, old); end $$;
create constraint trigger audit_users after insert or delete on auth.users deferrable initially deferred
    for each row execute function public.audit();
create or replace trigger audit_sessions before update on auth.sessions for each row execute function public.audit();
-- migration
do $$
begin
    create policy "Own files" on storage.objects for select to authenticated using (owner_id = auth.uid()::text);
exception when duplicate_object then
    null;
end
$$;
do $$
begin
    if not exists (select from pg_policies where schemaname = 'storage' and policyname = 'Pictures') then
        create policy "Pictures" on storage.objects for insert to authenticated with check (
            bucket_id = 'pictures' and lower(storage.extension(name)) = any (array['png', 'jpg']) and auth.tenant() is not null);
    end if;
end
$$;
alter policy "Pictures" on storage.objects rename to "Pictures of a tenant";
comment on policy "Own files" on storage.objects is 'Files of the user';
-- migration
insert into auth.users (instance_id, id, aud, role, email, encrypted_password, email_confirmed_at, raw_app_meta_data, raw_user_meta_data)
values ('00000000-0000-0000-0000-000000000000', '11111111-1111-1111-1111-111111111111', 'authenticated', 'authenticated',
    'a@example.com', extensions.crypt('password', extensions.gen_salt('bf')), now(), '{"provider": "email"}', '{"name": "A"}');
insert into auth.identities (id, user_id, provider_id, identity_data, provider, last_sign_in_at, created_at, updated_at)
select gen_random_uuid(), id, id::text, jsonb_build_object('sub', id::text, 'email', email), 'email', now(), now(), now() from auth.users;
do $$
begin
    assert (select name from public.people) = 'A';
    perform set_config('request.jwt.claims', '{"sub": "11111111-1111-1111-1111-111111111111"}', true);
    perform public.delete_account();
    assert not exists (select from auth.identities);
end
$$;
drop trigger audit_users on auth.users;
