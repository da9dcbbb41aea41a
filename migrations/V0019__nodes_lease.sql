-- Why: several processes may serve one data folder, and one of them at a time acts on its clusters. Who that is stands here
-- until it is due; each new holder raises the generation, and what an earlier one writes afterwards is not taken.

create table node_leases (
    node       uuid        primary key,
    holder     uuid        not null,
    generation bigint      not null,
    -- Whether the holder also has the lock file of the folder: then whoever gets that lock knows that the holder has ended.
    locked     boolean     not null,
    -- By this server's clock, so that nobody else's matters.
    expires_at timestamptz not null
);

-- Which control database this is: a data folder remembers it, so that no other takes the clusters in it for garbage.
create table installation (
    id  uuid    not null default gen_random_uuid(),
    one boolean primary key default true check (one)
);
insert into installation default values;
