-- Why: the settings of a project's services are the project's. Secrets among them are sealed in one text, so that neither a dump
-- nor the audit log has them. The number of the change tells which settings a running process has.

create table service_settings (
    project_id bigint not null references projects,
    service    text   not null,
    settings   jsonb  not null,
    secrets    bytea,
    generation bigint not null,
    primary key (project_id, service)
);
