-- Why: a project whose settings were applied from a document can be changed otherwise later. The values of the document are kept,
-- secrets as fingerprints, so that a difference shows. Versions of settings are read from the audit log, by project.

create table applied_settings (
    project_id bigint      primary key references projects,
    -- Values by path, such as `auth.jwt_exp`.
    settings   jsonb       not null,
    applied_at timestamptz not null,
    applied_by uuid        not null
);

create index audit_entries_settings_idx on audit_entries (chain, subject, number) where after like '[{"setting":%';
