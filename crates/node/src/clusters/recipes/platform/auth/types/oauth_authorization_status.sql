-- State of an authorization request.
create type auth.oauth_authorization_status as enum ('pending', 'approved', 'denied', 'expired');
alter type auth.oauth_authorization_status owner to supabase_auth_admin;
