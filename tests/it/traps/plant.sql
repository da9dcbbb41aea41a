-- Code of a tenant in every place where PostgreSQL lets a tenant plant it. Each function calls trap.spring, which tries to become
-- the superuser of the session. Executed as the owner of a project, statement by statement; statements end with two semicolons.
create schema trap;;
create sequence trap.caught;;
create table trap.notes (place text, session_name name, user_name name, is_super bool);;
-- Marks whether it ran with a right of the platform: by a value of a sequence, which no rollback undoes, and by the role `postgres`,
-- which becomes a superuser where that is possible.
create function trap.spring(place text) returns text language plpgsql volatile as $f$
declare
    is_super boolean;
    is_platforms boolean;
begin
    begin
        execute 'reset role';
    exception when others then null;
    end;
    begin
        execute 'reset session authorization';
    exception when others then null;
    end;
    begin
        execute 'set role none';
    exception when others then null;
    end;
    select rolsuper into is_super from pg_catalog.pg_roles where rolname = current_user;
    is_platforms := session_user in ('supabase_admin', 'gantry_rows', 'supabase_auth_admin', 'supabase_storage_admin',
                                     'supabase_realtime_admin', 'pgbouncer');
    if is_super or is_platforms then
        raise warning 'trap % ran as % in a session of %', place, current_user, session_user;
        begin
            execute 'alter role postgres superuser';
        exception when others then null;
        end;
        begin
            perform setval('trap.caught', nextval('trap.caught') + 1);
        exception when others then null;
        end;
        begin
            insert into trap.notes values (place, session_user, current_user, is_super);
        exception when others then null;
        end;
    end if;
    return place;
end
$f$;;
create function trap.yes(place text) returns boolean language plpgsql immutable as $f$
begin
    perform trap.spring(place);
    return true;
end
$f$;;
create function trap.same(value text, place text) returns text language plpgsql immutable as $f$
begin
    perform trap.spring(place);
    return value;
end
$f$;;
create function trap.row_trigger() returns trigger language plpgsql as $f$
begin
    perform trap.spring('trigger ' || tg_name);
    if tg_op = 'DELETE' then return old; end if;
    return new;
end
$f$;;
create function trap.statement_trigger() returns trigger language plpgsql as $f$
begin
    perform trap.spring('trigger ' || tg_name);
    return null;
end
$f$;;
-- Names of the platform, without what its objects have.
create schema net;;
create table net.http_request_queue (id int);;
insert into net.http_request_queue values (1);;
create trigger before_delete before delete on net.http_request_queue for each row execute function trap.row_trigger();;
alter table net.http_request_queue enable always trigger before_delete;;
create schema cron;;
create table cron.job (id int, command text);;
insert into cron.job values (1, 'nothing');;
create table cron.job_run_details (id int);;
insert into cron.job_run_details values (1);;
create rule on_delete as on delete to cron.job_run_details do also select trap.spring('rule on delete');;
alter table cron.job_run_details enable always rule on_delete;;
create schema vault2;;
create schema gantry_check_of_tenant;;
-- Types.
create domain public.checked as text check (trap.yes('domain'));;
create type public.kind as enum ('a', 'b');;
create function trap.of_kind(kind public.kind) returns text language plpgsql immutable as $f$
begin
    return trap.spring('cast');
end
$f$;;
create cast (public.kind as text) with function trap.of_kind(public.kind) as implicit;;
create function trap.difference(a int, b int) returns double precision language plpgsql immutable as $f$
begin
    perform trap.spring('range');
    return a - b;
end
$f$;;
create type public.span as range (subtype = int, subtype_diff = trap.difference);;
-- A table with code in each place.
create table public.trapped (
    id int primary key default length(trap.spring('default')),
    body text check (trap.yes('check')),
    twice text generated always as (trap.same(body, 'generated column')) stored,
    mail public.checked,
    kind public.kind,
    span public.span,
    tags text[] default ('{a}'::public.checked[])::text[]
);;
insert into public.trapped (id, body, mail, kind, span) values (1, 'x', 'y', 'a', '[1,2]'), (2, 'z', 'w', 'b', '[3,4]');;
create index on public.trapped (trap.same(body, 'index expression'));;
create index on public.trapped (id) where trap.yes('index predicate');;
create index on public.trapped using gist (span);;
create statistics public.trapped_statistics on (trap.same(body, 'statistics')), id from public.trapped;;
create table public.children (
    id int primary key,
    parent int references public.trapped on delete cascade on update cascade,
    session uuid references auth.sessions on delete cascade
);;
insert into public.children values (1, 1);;
create trigger child_removed before delete on public.children for each row execute function trap.row_trigger();;
create trigger origin_row before insert or update or delete on public.trapped for each row execute function trap.row_trigger();;
create trigger always_row before insert or update or delete on public.trapped for each row execute function trap.row_trigger();;
alter table public.trapped enable always trigger always_row;;
create trigger replica_row after insert or update or delete on public.trapped for each row execute function trap.row_trigger();;
alter table public.trapped enable replica trigger replica_row;;
create trigger disabled_row before delete on public.trapped for each row execute function trap.row_trigger();;
alter table public.trapped disable trigger disabled_row;;
create trigger always_truncate before truncate on public.trapped for each statement execute function trap.statement_trigger();;
alter table public.trapped enable always trigger always_truncate;;
create trigger replica_truncate after truncate on public.trapped for each statement execute function trap.statement_trigger();;
alter table public.trapped enable replica trigger replica_truncate;;
create constraint trigger deferred_row after insert or delete on public.trapped deferrable initially deferred
    for each row execute function trap.row_trigger();;
alter table public.trapped enable always trigger deferred_row;;
create rule on_update as on update to public.children do also select trap.spring('rule on update');;
alter table public.children enable always rule on_update;;
alter table public.trapped enable row level security;;
alter table public.trapped force row level security;;
create policy everything on public.trapped using (trap.yes('policy')) with check (trap.yes('policy'));;
create view public.watched as select *, '{a}'::public.checked[] as literal from public.trapped where trap.yes('view');;
create materialized view public.kept as select trap.spring('materialized view') as place;;
create table public.parts (id int, body text) partition by range ((id + length(trap.same('c', 'partition key'))));;
create table public.part_1 partition of public.parts for values from (0) to (1000);;
insert into public.parts values (1, 'a');;
create aggregate trap.total (text) (sfunc = textcat, stype = text, initcond = '');;
create publication trapped for table public.trapped;;
-- Tables of the platform, as far as the tenant may.
insert into auth.users (id, email, confirmation_token) values ('11111111-1111-4111-8111-111111111111', 'a@example.com', 'token');;
insert into auth.sessions (id, user_id) values ('22222222-2222-4222-8222-222222222222', '11111111-1111-4111-8111-111111111111');;
insert into auth.refresh_tokens (id, token, session_id) values (7, 'refresh', '22222222-2222-4222-8222-222222222222');;
create trigger user_changed before insert or update or delete on auth.users for each row execute function trap.row_trigger();;
create trigger session_ended before delete on auth.sessions for each row execute function trap.row_trigger();;
create trigger token_ended before delete on auth.refresh_tokens for each row execute function trap.row_trigger();;
create trigger provider_changed before insert or update or delete on auth.sso_providers for each row execute function trap.row_trigger();;
create trigger domain_changed before insert or update or delete on auth.sso_domains for each row execute function trap.row_trigger();;
create trigger saml_changed before insert or update or delete on auth.saml_providers for each row execute function trap.row_trigger();;
create trigger bucket_changed before insert or update or delete on storage.buckets for each row execute function trap.row_trigger();;
create policy providers on auth.sso_providers using (trap.yes('policy of the platform'));;
alter table auth.sso_providers force row level security;;
create policy users on auth.users using (trap.yes('policy of the platform'));;
alter table auth.users force row level security;;
create policy tokens on auth.refresh_tokens using (trap.yes('policy of the platform'));;
alter table auth.refresh_tokens force row level security;;
-- Functions and operators with the names of PostgreSQL's, found first by the search path of the database and of the role.
create function trap.format(text, variadic text[]) returns text language plpgsql as $f$
begin
    perform trap.spring('function format');
    return pg_catalog.format($1, variadic $2);
end
$f$;;
create function trap.equal(a text, b text) returns boolean language plpgsql immutable as $f$
begin
    perform trap.spring('operator');
    return pg_catalog.texteq(a, b);
end
$f$;;
create operator trap.= (leftarg = text, rightarg = text, function = trap.equal);;
create function trap.name_equal(a name, b text) returns boolean language plpgsql immutable as $f$
begin
    perform trap.spring('operator of names');
    return pg_catalog.texteq(a::text, b);
end
$f$;;
create operator trap.= (leftarg = name, rightarg = text, function = trap.name_equal);;
create function public.to_regclass(text) returns regclass language plpgsql as $f$
begin
    perform trap.spring('function to_regclass');
    return pg_catalog.to_regclass($1);
end
$f$;;
alter database postgres set search_path = trap, public, pg_catalog;;
alter role postgres set search_path = trap, public, pg_catalog;;
-- Roles that own tables and may not use their schemas.
create role trap_owner nologin;;
grant trap_owner to postgres;;
create schema trap_private;;
create table trap_private.owned (id int);;
insert into trap_private.owned values (1);;
create trigger owned_truncated before truncate on trap_private.owned for each statement execute function trap.statement_trigger();;
alter table trap_private.owned enable always trigger owned_truncated;;
grant create, usage on schema trap_private to trap_owner;;
alter table trap_private.owned owner to trap_owner;;
revoke all on schema trap_private from trap_owner;;
grant usage on schema trap to trap_owner;;
