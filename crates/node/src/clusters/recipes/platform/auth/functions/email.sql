-- E-mail address of the user whose token the request carries. NULL without one.
-- Older versions of PostgREST set one setting per claim; it takes precedence.
create or replace function auth.email() returns text
language sql stable
as $$
    select coalesce(
        nullif(current_setting('request.jwt.claim.email', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'email'
    )
$$;
alter function auth.email() owner to supabase_auth_admin;
grant execute on function auth.email() to postgres, dashboard_user;
