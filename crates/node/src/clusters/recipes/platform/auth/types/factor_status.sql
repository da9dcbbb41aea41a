-- State of a second factor.
create type auth.factor_status as enum ('unverified', 'verified');
alter type auth.factor_status owner to supabase_auth_admin;
