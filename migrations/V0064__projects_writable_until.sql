-- Why: the owner of a project that was made read-only for its disk space can switch that off for a while, to delete data.

alter table projects add column writable_until timestamptz;
