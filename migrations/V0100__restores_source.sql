-- Why: a restore into a new project reads the backups of another project. `report` has the counts of what was removed from the new
-- project's cluster.

alter table restores add column source_id bigint references projects;
alter table restores add column report jsonb;
create index restores_source_idx on restores (source_id) where finished_at is null;
