-- Purpose of a one-time token.
create type auth.one_time_token_type as enum ('confirmation_token', 'reauthentication_token', 'recovery_token', 'email_change_token_new', 'email_change_token_current', 'phone_change_token');
alter type auth.one_time_token_type owner to supabase_auth_admin;
