-- SAML sign-ins that are not finished yet.
create table auth.saml_relay_states (
    id uuid not null,
    sso_provider_id uuid not null,
    request_id text not null,
    for_email text,
    redirect_to text,
    created_at timestamptz,
    updated_at timestamptz,
    flow_state_id uuid,
    constraint saml_relay_states_pkey primary key (id),
    constraint saml_relay_states_flow_state_id_fkey foreign key (flow_state_id) references auth.flow_state (id) on delete cascade,
    constraint saml_relay_states_sso_provider_id_fkey foreign key (sso_provider_id) references auth.sso_providers (id) on delete cascade,
    constraint "request_id not empty" check (char_length(request_id) > 0)
);
create index saml_relay_states_created_at_idx on auth.saml_relay_states (created_at);
create index saml_relay_states_for_email_idx on auth.saml_relay_states (for_email);
create index saml_relay_states_sso_provider_id_idx on auth.saml_relay_states (sso_provider_id);

alter table auth.saml_relay_states owner to supabase_auth_admin;
alter table auth.saml_relay_states enable row level security;
grant all on auth.saml_relay_states to postgres, dashboard_user;
grant select on auth.saml_relay_states to postgres with grant option;
comment on table auth.saml_relay_states is 'SAML sign-ins that are not finished yet';
