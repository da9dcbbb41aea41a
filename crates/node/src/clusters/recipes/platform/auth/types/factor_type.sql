-- Kind of a second factor.
create type auth.factor_type as enum ('totp', 'webauthn', 'phone');
alter type auth.factor_type owner to supabase_auth_admin;
