-- A profile for each user, created by a trigger on auth.users.
create table public.profiles (
    id uuid references auth.users on delete cascade not null primary key,
    updated_at timestamp with time zone,
    username text unique,
    avatar_url text,
    constraint username_length check (char_length(username) >= 3)
);
alter table profiles enable row level security;
create policy "Profiles are visible to everyone" on profiles for select using (true);
create policy "Users insert their own profile" on profiles for insert with check ((select auth.uid()) = id);
create policy "Users update their own profile" on profiles for update using ((select auth.uid()) = id);
create function public.handle_new_user() returns trigger
set search_path = ''
as $$
begin
    insert into public.profiles (id, avatar_url) values (new.id, new.raw_user_meta_data ->> 'avatar_url');
    return new;
end;
$$ language plpgsql security definer;
drop trigger if exists on_auth_user_created on auth.users;
create trigger on_auth_user_created after insert on auth.users for each row execute procedure public.handle_new_user();
-- migration
insert into auth.users (instance_id, id, aud, role, email, encrypted_password, raw_user_meta_data, created_at)
values ('00000000-0000-0000-0000-000000000000', gen_random_uuid(), 'authenticated', 'authenticated', 'someone@example.com',
    extensions.crypt('password', extensions.gen_salt('bf')), '{"avatar_url": "a.png"}', now());
do $$
begin
    assert (select avatar_url from public.profiles) = 'a.png';
end
$$;
-- migration
drop trigger on_auth_user_created on auth.users;
create or replace function public.sync_email() returns trigger language plpgsql security definer as $$ begin return new; end $$;
create trigger on_auth_user_updated after update of email on auth.users for each row execute function public.sync_email();
