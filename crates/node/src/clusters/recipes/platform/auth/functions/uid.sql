-- Id of the user whose token the request carries: the claim `sub`. NULL without one.
-- Older versions of PostgREST set one setting per claim; it takes precedence.
create or replace function auth.uid() returns uuid
language sql stable
as $$
    select coalesce(
        nullif(current_setting('request.jwt.claim.sub', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub'
    )::uuid
$$;
alter function auth.uid() owner to supabase_auth_admin;
grant execute on function auth.uid() to postgres, dashboard_user;
