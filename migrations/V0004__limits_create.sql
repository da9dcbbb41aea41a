-- Why: several processes count one caller's requests together, and operators raise or lower limits for some. Counters may
-- be lost with the server, so they are not written to the log; what operators decided may not, nor who decided it.

-- One row a counter. A window is over when `ends_*` has passed: milliseconds of this server's clock.
create unlogged table limit_counters (
    -- <operation>/<identifier>/<scope>
    key     text   collate "C" primary key,
    limit_1 integer not null,
    limit_2 integer not null,
    -- What the last statement granted of what it asked for, and when.
    granted integer not null,
    used_1  integer not null,
    ends_1  bigint  not null,
    used_2  integer not null,
    ends_2  bigint  not null,
    at      bigint  not null
    -- Room for the next version of a row beside it: an update then touches no index.
) with (fillfactor = 70);

create table limit_overrides (
    id              bigint generated always as identity primary key,
    -- What is null is not asked for: any operation, any application, any organization.
    operation       text,
    application     uuid,
    organization_id bigint references organizations on delete cascade,
    -- Replaces what the operation's longest window admits. Its length and its burst stay.
    requests        integer     not null check (requests between 1 and 1000000),
    created_by      text        not null,
    created_at      timestamptz not null,
    constraint limit_overrides_key unique nulls not distinct (operation, application, organization_id),
    check (num_nonnulls(operation, application, organization_id) > 0)
);

-- Every change of an override, kept when the override is gone.
create table limit_changes (
    id              bigint generated always as identity primary key,
    at              timestamptz not null,
    by              text        not null,
    operation       text,
    application     uuid,
    organization_id bigint,
    -- Null where there was none before, or is none after.
    requests_old    integer,
    requests_new    integer
);

-- Written by the database, so that no writer, not even a person with psql, can forget to. `gantry.actor` names the person
-- where the connection's own user would not.
create function limit_overrides_record() returns trigger language plpgsql as $$
declare
    subject limit_overrides := coalesce(new, old);
begin
    insert into limit_changes (at, by, operation, application, organization_id, requests_old, requests_new)
    values (clock_timestamp(), coalesce(nullif(current_setting('gantry.actor', true), ''), session_user),
            subject.operation, subject.application, subject.organization_id, old.requests, new.requests);
    return null;
end
$$;

create trigger limit_overrides_record   after insert or update or delete on limit_overrides for each row execute function limit_overrides_record();
create trigger limit_overrides_announce after insert or update or delete on limit_overrides for each statement execute function announce();
