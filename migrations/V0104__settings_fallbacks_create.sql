-- Why: settings of services are changed together with those of the server. If the server does not start with its new settings, the
-- others must return too, also if the process that changed them has ended. Until the server has started, the previous rows are kept here.

create table settings_fallbacks (
    project_id bigint not null references projects,
    -- `api`, `network`, or the name of a service.
    section    text   not null,
    -- Rows of the section before and after the change; null if there was none. Secrets in them are sealed.
    before     jsonb,
    after      jsonb,
    primary key (project_id, section)
);
