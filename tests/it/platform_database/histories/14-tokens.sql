-- Signed tokens, random codes and identifiers of the extensions of each project.
create extension if not exists "pgcrypto" with schema "extensions";
create extension if not exists "pgjwt" with schema "extensions" version '0.2.0';
create extension if not exists "uuid-ossp" with schema "extensions";
create table public.invitations (
    id uuid primary key default uuid_generate_v4(),
    other uuid default extensions.uuid_generate_v4(),
    code text not null default encode(extensions.gen_random_bytes(16), 'hex'),
    password text default extensions.crypt('secret', extensions.gen_salt('bf', 4))
);
-- migration
create function public.make_token(claims json) returns text language sql security definer set search_path = '' as $$
    select extensions.sign(claims, 'at-least-32-characters-of-a-secret-key')
$$;
insert into public.invitations default values;
do $$
begin
    assert (select valid from extensions.verify(public.make_token('{"role": "anon"}'), 'at-least-32-characters-of-a-secret-key'));
end
$$;
