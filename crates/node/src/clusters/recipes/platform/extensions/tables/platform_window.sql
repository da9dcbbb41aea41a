-- The roles that own the platform's tables, as they were when a session began to define a policy; see tenant_policies.sql. A row
-- exists within one command only.
create unlogged table extensions.platform_window (
    pid integer primary key,
    roles text not null
);
-- For GRANT … ON ALL TABLES IN SCHEMA extensions, which fails for a table on which the owner has no privilege.
grant select on extensions.platform_window to postgres;
