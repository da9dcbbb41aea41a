-- Hooks of the auth service, with grants to its role.
create table public.user_roles (user_id uuid references auth.users on delete cascade, role text, primary key (user_id, role));
create or replace function public.custom_access_token_hook(event jsonb) returns jsonb language plpgsql stable as $$
declare
    claims jsonb := event -> 'claims';
begin
    claims := jsonb_set(claims, '{user_role}', coalesce(
        (select to_jsonb(role) from public.user_roles where user_id = (event ->> 'user_id')::uuid limit 1), 'null'));
    return jsonb_set(event, '{claims}', claims);
end
$$;
grant usage on schema public to supabase_auth_admin;
grant execute on function public.custom_access_token_hook to supabase_auth_admin;
revoke execute on function public.custom_access_token_hook from authenticated, anon, public;
grant all on table public.user_roles to supabase_auth_admin;
revoke all on table public.user_roles from authenticated, anon, public;
alter table public.user_roles enable row level security;
create policy "Allow auth admin to read user roles" on public.user_roles as permissive for select to supabase_auth_admin using (true);
-- migration
create function public.authorize(requested text) returns boolean language sql stable security definer set search_path = '' as $$
    select exists (select from public.user_roles where user_id = auth.uid() and role = requested)
        or (auth.jwt() ->> 'user_role') = requested
$$;
create policy "Admins" on storage.objects for all to authenticated using (bucket_id = 'private' and public.authorize('admin'));
create policy "Admins send" on realtime.messages for insert to authenticated with check (public.authorize('admin'));
create function public.nothing() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger on_email after update of email on auth.users for each row when (old.email is distinct from new.email)
    execute function public.nothing();
