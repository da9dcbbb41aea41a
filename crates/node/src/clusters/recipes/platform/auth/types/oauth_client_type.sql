-- Whether an OAuth client can keep a secret.
create type auth.oauth_client_type as enum ('public', 'confidential');
alter type auth.oauth_client_type owner to supabase_auth_admin;
