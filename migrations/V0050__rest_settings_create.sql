-- Why: Gantry runs the Data API of projects. Its settings are the project's. The number of their change tells which settings a
-- running process has. The service key signs the short tokens that API keys are exchanged for at the edge; it never leaves the node.

create table rest_settings (
    project_id           bigint  primary key references projects,
    db_schema            text    not null,
    max_rows             integer not null check (max_rows between 0 and 1000000),
    db_extra_search_path text    not null,
    db_pool              integer check (db_pool between 0 and 1000),
    generation           bigint  not null
);

create trigger rest_settings_announce after insert or update or delete on rest_settings for each statement execute function announce();

alter table key_rings add column service_key bytea;
