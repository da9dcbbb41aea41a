-- Claims of the request's JSON Web Token. NULL outside a request of the Data API.
create or replace function auth.jwt() returns jsonb
language sql stable
as $$
    select coalesce(
        nullif(current_setting('request.jwt.claim', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')
    )::jsonb
$$;
alter function auth.jwt() owner to supabase_auth_admin;
grant execute on function auth.jwt() to postgres, dashboard_user;
