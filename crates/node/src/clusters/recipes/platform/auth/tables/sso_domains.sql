-- Domains of e-mail addresses that sign in through an SSO provider.
create table auth.sso_domains (
    id uuid not null,
    sso_provider_id uuid not null,
    domain text not null,
    created_at timestamptz,
    updated_at timestamptz,
    constraint sso_domains_pkey primary key (id),
    constraint sso_domains_sso_provider_id_fkey foreign key (sso_provider_id) references auth.sso_providers (id) on delete cascade,
    constraint "domain not empty" check (char_length(domain) > 0)
);
create unique index sso_domains_domain_idx on auth.sso_domains (lower(domain));
create index sso_domains_sso_provider_id_idx on auth.sso_domains (sso_provider_id);

alter table auth.sso_domains owner to supabase_auth_admin;
alter table auth.sso_domains enable row level security;
grant all on auth.sso_domains to postgres, dashboard_user;
grant select on auth.sso_domains to postgres with grant option;
comment on table auth.sso_domains is 'Domains of e-mail addresses that sign in through an SSO provider';
