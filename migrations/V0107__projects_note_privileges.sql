-- Why: a project whose owner became a superuser is found when its server starts. The operator and the owner must see it: in the
-- health of the project, until a later start finds nothing, and in the audit log.

alter table projects add column privilege_findings text;
