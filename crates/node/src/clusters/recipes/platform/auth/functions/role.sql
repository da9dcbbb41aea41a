-- Role of the request's token: the claim `role`. NULL without one.
-- Older versions of PostgREST set one setting per claim; it takes precedence.
create or replace function auth.role() returns text
language sql stable
as $$
    select coalesce(
        nullif(current_setting('request.jwt.claim.role', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'role'
    )
$$;
alter function auth.role() owner to supabase_auth_admin;
grant execute on function auth.role() to postgres, dashboard_user;
