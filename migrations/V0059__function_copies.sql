-- Why: functions are copied between a project and its branches. The copied deployment tells which versions are still the same, so
-- that a repeated run copies nothing twice, and a merge leaves out functions that were not changed on the branch.

alter table function_versions add column copied_from uuid;
