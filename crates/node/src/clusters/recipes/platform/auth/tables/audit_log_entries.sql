-- Events of the auth service: sign-ins, sign-outs, changes of accounts.
create table auth.audit_log_entries (
    instance_id uuid,
    id uuid not null,
    payload json,
    created_at timestamptz,
    ip_address varchar(64) default ''::varchar not null,
    constraint audit_log_entries_pkey primary key (id)
);
create index audit_logs_instance_id_idx on auth.audit_log_entries (instance_id);

alter table auth.audit_log_entries owner to supabase_auth_admin;
alter table auth.audit_log_entries enable row level security;
grant all on auth.audit_log_entries to postgres, dashboard_user;
grant select on auth.audit_log_entries to postgres with grant option;
comment on table auth.audit_log_entries is 'Events of the auth service: sign-ins, sign-outs, changes of accounts';
