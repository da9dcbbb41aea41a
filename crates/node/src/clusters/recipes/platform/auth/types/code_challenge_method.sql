-- Method of a PKCE code challenge.
create type auth.code_challenge_method as enum ('s256', 'plain');
alter type auth.code_challenge_method owner to supabase_auth_admin;
