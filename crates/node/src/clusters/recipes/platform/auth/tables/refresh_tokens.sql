-- Refresh tokens, each issued in exchange for its parent.
create sequence auth.refresh_tokens_id_seq;

create table auth.refresh_tokens (
    instance_id uuid,
    id bigint default nextval('auth.refresh_tokens_id_seq'::regclass) not null,
    token varchar(255),
    user_id varchar(255),
    revoked boolean,
    created_at timestamptz,
    updated_at timestamptz,
    parent varchar(255),
    session_id uuid,
    constraint refresh_tokens_pkey primary key (id),
    constraint refresh_tokens_token_unique unique (token),
    constraint refresh_tokens_session_id_fkey foreign key (session_id) references auth.sessions (id) on delete cascade
);
alter sequence auth.refresh_tokens_id_seq owned by auth.refresh_tokens.id;
create index refresh_tokens_instance_id_idx on auth.refresh_tokens (instance_id);
create index refresh_tokens_instance_id_user_id_idx on auth.refresh_tokens (instance_id, user_id);
create index refresh_tokens_parent_idx on auth.refresh_tokens (parent);
create index refresh_tokens_session_id_revoked_idx on auth.refresh_tokens (session_id, revoked);
create index refresh_tokens_updated_at_idx on auth.refresh_tokens (updated_at);

alter table auth.refresh_tokens owner to supabase_auth_admin;
grant all on sequence auth.refresh_tokens_id_seq to postgres, dashboard_user;
alter table auth.refresh_tokens enable row level security;
grant all on auth.refresh_tokens to postgres, dashboard_user;
grant select on auth.refresh_tokens to postgres with grant option;
comment on table auth.refresh_tokens is 'Refresh tokens, each issued in exchange for its parent';
