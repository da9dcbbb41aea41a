-- Why: the settings of a project's Auth service are the project's. Secrets among them are sealed in one text, so that neither a dump
-- nor the audit log has them. The number of the change tells which settings a running process has.

create table auth_settings (
    project_id bigint primary key references projects,
    settings   jsonb  not null,
    secrets    bytea,
    generation bigint not null
);
