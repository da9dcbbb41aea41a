-- Why: while the counters cannot be reached, a process admits no more than its share of a limit, so it must know how many
-- processes count here; and it must notice when a crash of this server emptied the counters, which are not logged.

-- One row a process that counts here. Told apart from those that ended by when they were last heard of.
create unlogged table limit_processes (
    process text   collate "C" primary key,
    -- Milliseconds of this server's clock.
    seen    bigint not null
);

-- A random name of the counters. A crash empties this table together with limit_counters; a name made anew says so.
create unlogged table limit_counters_name (
    one  boolean primary key check (one),
    name text not null
);
