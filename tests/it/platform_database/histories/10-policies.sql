-- Policies that ask for claims of the token.
create table public.documents (id uuid primary key default gen_random_uuid(), tenant uuid, body text, search tsvector generated always as (to_tsvector('english', coalesce(body, ''))) stored);
alter table public.documents enable row level security;
alter table public.documents force row level security;
create policy tenant_isolation on public.documents using (tenant = ((auth.jwt() -> 'app_metadata') ->> 'tenant')::uuid);
create policy second_factor on public.documents as restrictive to authenticated using ((auth.jwt() ->> 'aal') = 'aal2');
create policy service on public.documents for all using (auth.role() = 'service_role');
create policy by_mail on public.documents for select using (auth.email() = 'someone@example.com');
create index documents_search_idx on public.documents using gin (search);
-- migration
create view public.own_documents with (security_invoker = true) as select id, body from public.documents;
create function public.current_tenant() returns uuid language sql stable as $$ select ((auth.jwt() -> 'app_metadata') ->> 'tenant')::uuid $$;
comment on function public.current_tenant is 'Tenant of the request';
grant select on public.own_documents to authenticated;
