-- SAML identity providers.
create table auth.saml_providers (
    id uuid not null,
    sso_provider_id uuid not null,
    entity_id text not null,
    metadata_xml text not null,
    metadata_url text,
    attribute_mapping jsonb,
    created_at timestamptz,
    updated_at timestamptz,
    name_id_format text,
    constraint saml_providers_pkey primary key (id),
    constraint saml_providers_entity_id_key unique (entity_id),
    constraint saml_providers_sso_provider_id_fkey foreign key (sso_provider_id) references auth.sso_providers (id) on delete cascade,
    constraint "entity_id not empty" check (char_length(entity_id) > 0),
    constraint "metadata_url not empty" check ((metadata_url = null::text) or (char_length(metadata_url) > 0)),
    constraint "metadata_xml not empty" check (char_length(metadata_xml) > 0)
);
create index saml_providers_sso_provider_id_idx on auth.saml_providers (sso_provider_id);

alter table auth.saml_providers owner to supabase_auth_admin;
alter table auth.saml_providers enable row level security;
grant all on auth.saml_providers to postgres, dashboard_user;
grant select on auth.saml_providers to postgres with grant option;
comment on table auth.saml_providers is 'SAML identity providers';
