-- Authenticator assurance level of a session: aal2 after a second factor.
create type auth.aal_level as enum ('aal1', 'aal2', 'aal3');
alter type auth.aal_level owner to supabase_auth_admin;
