-- OAuth response types that are supported.
create type auth.oauth_response_type as enum ('code');
alter type auth.oauth_response_type owner to supabase_auth_admin;
