-- Why: a project's database holds the schemas of the platform. An object of the tenant can be in the way of a part of them, which
-- the project's health tells; and a project chooses whether new tables are open to the roles of the Data API.
alter table projects
    -- Parts of the platform that objects of the tenant are in the way of; null if there are none.
    add column platform_conflicts text,
    -- Whether new objects in `public` are open to the roles of the Data API.
    add column new_table_grants text not null default 'none' check (new_table_grants in ('none', 'api'));
