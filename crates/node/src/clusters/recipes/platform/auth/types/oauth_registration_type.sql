-- How an OAuth client was registered.
create type auth.oauth_registration_type as enum ('dynamic', 'manual');
alter type auth.oauth_registration_type owner to supabase_auth_admin;
