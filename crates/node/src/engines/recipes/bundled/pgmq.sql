-- Message queues in tables. The interface is that of pgmq 1.5: each queue is a table q_<name> of messages and a table a_<name>
-- of archived ones. A message that was read is invisible until its time `vt`.
--
-- All functions run with the rights of their caller, and belong to the owner of the project, who thus can grant them.
create table pgmq.meta (
    queue_name varchar unique not null,
    is_partitioned boolean not null,
    is_unlogged boolean not null,
    created_at timestamptz not null default now()
);
select pg_catalog.pg_extension_config_dump('pgmq.meta', '');

create type pgmq.message_record as (
    msg_id bigint, read_ct integer, enqueued_at timestamptz, vt timestamptz, message jsonb, headers jsonb
);
create type pgmq.queue_record as (queue_name varchar, is_partitioned boolean, is_unlogged boolean, created_at timestamptz);
create type pgmq.metrics_result as (
    queue_name text, queue_length bigint, newest_msg_age_sec integer, oldest_msg_age_sec integer, total_messages bigint,
    scrape_time timestamptz, queue_visible_length bigint
);

-- Names of tables have at most 63 bytes; the longest one made of a queue's name has a prefix of 16.
create function pgmq.validate_queue_name(queue_name text) returns void
language plpgsql
as $$
begin
    if octet_length(queue_name) > 47 then
        raise exception 'queue name is too long, maximum length is 47 characters' using errcode = 'name_too_long';
    end if;
end
$$;

create function pgmq.format_table_name(queue_name text, prefix text) returns text
language plpgsql
as $$
begin
    if queue_name is null or queue_name = '' or queue_name ~ '[$;'']|--' then
        raise exception 'queue name contains invalid characters: $, ;, --, or '''
            using errcode = 'invalid_name';
    end if;
    return lower(prefix || '_' || queue_name);
end
$$;

-- Serializes the creation and removal of one queue until the end of the transaction.
create function pgmq.acquire_queue_lock(queue_name text) returns void
language sql
as $$ select pg_advisory_xact_lock(hashtext('pgmq.queue_' || queue_name)) $$;

create function pgmq._create_queue(queue_name text, unlogged boolean) returns void
language plpgsql
set client_min_messages = warning
as $$
declare
    messages text := pgmq.format_table_name(queue_name, 'q');
    archive text := pgmq.format_table_name(queue_name, 'a');
begin
    perform pgmq.validate_queue_name(queue_name);
    perform pgmq.acquire_queue_lock(queue_name);
    execute format('
        create %s table if not exists pgmq.%I (
            msg_id bigint primary key generated always as identity,
            read_ct integer not null default 0,
            enqueued_at timestamptz not null default now(),
            vt timestamptz not null,
            message jsonb,
            headers jsonb
        )', case when unlogged then 'unlogged' else '' end, messages);
    execute format('
        create table if not exists pgmq.%I (
            msg_id bigint primary key,
            read_ct integer not null default 0,
            enqueued_at timestamptz not null default now(),
            archived_at timestamptz not null default now(),
            vt timestamptz not null,
            message jsonb,
            headers jsonb
        )', archive);
    execute format('create index if not exists %I on pgmq.%I (vt)', messages || '_vt_idx', messages);
    execute format('create index if not exists %I on pgmq.%I (archived_at)', 'archived_at_idx_' || lower(queue_name), archive);
    insert into pgmq.meta (queue_name, is_partitioned, is_unlogged) values ($1, false, unlogged)
        on conflict do nothing;
end
$$;

create function pgmq.create_non_partitioned(queue_name text) returns void
language sql as $$ select pgmq._create_queue(queue_name, false) $$;

create function pgmq.create_unlogged(queue_name text) returns void
language sql as $$ select pgmq._create_queue(queue_name, true) $$;

create function pgmq."create"(queue_name text) returns void
language sql as $$ select pgmq._create_queue(queue_name, false) $$;

create function pgmq.create_partitioned(
    queue_name text, partition_interval text default '10000', retention_interval text default '100000'
) returns void
language plpgsql
as $$
begin
    raise exception 'partitioned queues are not supported by this server'
        using errcode = 'feature_not_supported', hint = 'Use pgmq.create(), and archive or delete messages that were processed.';
end
$$;

create function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz) returns setof bigint
language plpgsql
as $$
begin
    return query execute
        format('insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id',
               pgmq.format_table_name(queue_name, 'q'))
        using delay, msg, headers;
end
$$;

create function pgmq.send(queue_name text, msg jsonb) returns setof bigint
language sql as $$ select * from pgmq.send(queue_name, msg, null::jsonb, clock_timestamp()) $$;

create function pgmq.send(queue_name text, msg jsonb, headers jsonb) returns setof bigint
language sql as $$ select * from pgmq.send(queue_name, msg, headers, clock_timestamp()) $$;

create function pgmq.send(queue_name text, msg jsonb, delay integer) returns setof bigint
language sql as $$ select * from pgmq.send(queue_name, msg, null::jsonb, clock_timestamp() + make_interval(secs => delay)) $$;

create function pgmq.send(queue_name text, msg jsonb, delay timestamptz) returns setof bigint
language sql as $$ select * from pgmq.send(queue_name, msg, null::jsonb, delay) $$;

create function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay integer) returns setof bigint
language sql as $$ select * from pgmq.send(queue_name, msg, headers, clock_timestamp() + make_interval(secs => delay)) $$;

create function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz) returns setof bigint
language plpgsql
as $$
begin
    if cardinality(headers) > 0 and cardinality(headers) <> cardinality(msgs) then
        raise exception 'there must be as many headers as messages' using errcode = 'invalid_parameter_value';
    end if;
    -- Identifiers ascend in the order of the messages.
    return query execute
        format('insert into pgmq.%I (vt, message, headers)
                select $2, sent.message, sent.headers
                from unnest($1, $3) with ordinality as sent (message, headers, position)
                order by sent.position returning msg_id',
               pgmq.format_table_name(queue_name, 'q'))
        using msgs, delay, headers;
end
$$;

create function pgmq.send_batch(queue_name text, msgs jsonb[]) returns setof bigint
language sql as $$ select * from pgmq.send_batch(queue_name, msgs, null::jsonb[], clock_timestamp()) $$;

create function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[]) returns setof bigint
language sql as $$ select * from pgmq.send_batch(queue_name, msgs, headers, clock_timestamp()) $$;

create function pgmq.send_batch(queue_name text, msgs jsonb[], delay integer) returns setof bigint
language sql
as $$ select * from pgmq.send_batch(queue_name, msgs, null::jsonb[], clock_timestamp() + make_interval(secs => delay)) $$;

create function pgmq.send_batch(queue_name text, msgs jsonb[], delay timestamptz) returns setof bigint
language sql as $$ select * from pgmq.send_batch(queue_name, msgs, null::jsonb[], delay) $$;

create function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay integer) returns setof bigint
language sql
as $$ select * from pgmq.send_batch(queue_name, msgs, headers, clock_timestamp() + make_interval(secs => delay)) $$;

-- Returns up to `qty` visible messages, oldest first, and hides them for `vt` seconds. Concurrent readers get different ones.
create function pgmq.read(queue_name text, vt integer, qty integer, conditional jsonb) returns setof pgmq.message_record
language plpgsql
as $$
declare
    messages text := pgmq.format_table_name(queue_name, 'q');
begin
    return query execute
        format('with chosen as (
                    select msg_id from pgmq.%1$I
                    where vt <= clock_timestamp() and message @> $3
                    order by msg_id limit $1 for update skip locked
                ), changed as (
                    update pgmq.%1$I as queued
                    set vt = clock_timestamp() + make_interval(secs => $2), read_ct = queued.read_ct + 1
                    from chosen where queued.msg_id = chosen.msg_id
                    returning queued.msg_id, queued.read_ct, queued.enqueued_at, queued.vt, queued.message, queued.headers
                )
                select * from changed order by msg_id', messages)
        using qty, vt, coalesce(conditional, '{}');
end
$$;

create function pgmq.read(queue_name text, vt integer, qty integer) returns setof pgmq.message_record
language plpgsql
as $$
declare
    messages text := pgmq.format_table_name(queue_name, 'q');
begin
    return query execute
        format('with chosen as (
                    select msg_id from pgmq.%1$I
                    where vt <= clock_timestamp()
                    order by msg_id limit $1 for update skip locked
                ), changed as (
                    update pgmq.%1$I as queued
                    set vt = clock_timestamp() + make_interval(secs => $2), read_ct = queued.read_ct + 1
                    from chosen where queued.msg_id = chosen.msg_id
                    returning queued.msg_id, queued.read_ct, queued.enqueued_at, queued.vt, queued.message, queued.headers
                )
                select * from changed order by msg_id', messages)
        using qty, vt;
end
$$;

-- Waits for messages up to `max_poll_seconds`.
create function pgmq.read_with_poll(
    queue_name text, vt integer, qty integer, max_poll_seconds integer, poll_interval_ms integer, conditional jsonb
) returns setof pgmq.message_record
language plpgsql
as $$
declare
    last_time timestamptz := clock_timestamp() + make_interval(secs => max_poll_seconds);
begin
    loop
        if coalesce(conditional, '{}') = '{}' then
            return query select * from pgmq.read(queue_name, vt, qty);
        else
            return query select * from pgmq.read(queue_name, vt, qty, conditional);
        end if;
        if found or clock_timestamp() >= last_time then
            return;
        end if;
        perform pg_sleep(greatest(poll_interval_ms, 1) / 1000.0);
    end loop;
end
$$;

create function pgmq.read_with_poll(
    queue_name text, vt integer, qty integer, max_poll_seconds integer default 5, poll_interval_ms integer default 100
) returns setof pgmq.message_record
language sql
as $$ select * from pgmq.read_with_poll(queue_name, vt, qty, max_poll_seconds, poll_interval_ms, '{}'::jsonb) $$;

-- Removes the oldest visible message and returns it.
create function pgmq.pop(queue_name text) returns setof pgmq.message_record
language plpgsql
as $$
begin
    return query execute
        format('delete from pgmq.%1$I where msg_id = (
                    select msg_id from pgmq.%1$I
                    where vt <= clock_timestamp() order by msg_id limit 1 for update skip locked)
                returning msg_id, read_ct, enqueued_at, vt, message, headers', pgmq.format_table_name(queue_name, 'q'));
end
$$;

create function pgmq.archive(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql
as $$
begin
    return query execute
        format('with removed as (
                    delete from pgmq.%I where msg_id = any ($1)
                    returning msg_id, read_ct, enqueued_at, vt, message, headers
                )
                insert into pgmq.%I (msg_id, read_ct, enqueued_at, vt, message, headers)
                select msg_id, read_ct, enqueued_at, vt, message, headers from removed returning msg_id',
               pgmq.format_table_name(queue_name, 'q'), pgmq.format_table_name(queue_name, 'a'))
        using msg_ids;
end
$$;

create function pgmq.archive(queue_name text, msg_id bigint) returns boolean
language sql as $$ select count(*) > 0 from pgmq.archive(queue_name, array[msg_id]) $$;

create function pgmq.delete(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql
as $$
begin
    return query execute
        format('delete from pgmq.%I where msg_id = any ($1) returning msg_id', pgmq.format_table_name(queue_name, 'q'))
        using msg_ids;
end
$$;

create function pgmq.delete(queue_name text, msg_id bigint) returns boolean
language sql as $$ select count(*) > 0 from pgmq.delete(queue_name, array[msg_id]) $$;

-- Makes a message visible `vt` seconds from now.
create function pgmq.set_vt(queue_name text, msg_id bigint, vt integer) returns setof pgmq.message_record
language plpgsql
as $$
begin
    return query execute
        format('update pgmq.%I set vt = clock_timestamp() + make_interval(secs => $2) where msg_id = $1
                returning msg_id, read_ct, enqueued_at, vt, message, headers', pgmq.format_table_name(queue_name, 'q'))
        using msg_id, vt;
end
$$;

create function pgmq.purge_queue(queue_name text) returns bigint
language plpgsql
as $$
declare
    messages text := pgmq.format_table_name(queue_name, 'q');
    removed bigint;
begin
    -- No message may arrive between the count and the removal.
    execute format('lock table pgmq.%I in access exclusive mode', messages);
    execute format('select count(*) from pgmq.%I', messages) into removed;
    execute format('truncate pgmq.%I', messages);
    return removed;
end
$$;

create function pgmq.drop_queue(queue_name text) returns boolean
language plpgsql
set client_min_messages = warning
as $$
declare
    removed bigint;
begin
    perform pgmq.acquire_queue_lock(queue_name);
    execute format('drop table if exists pgmq.%I', pgmq.format_table_name(queue_name, 'q'));
    execute format('drop table if exists pgmq.%I', pgmq.format_table_name(queue_name, 'a'));
    delete from pgmq.meta where meta.queue_name = $1;
    get diagnostics removed = row_count;
    return removed > 0;
end
$$;

create function pgmq.drop_queue(queue_name text, partitioned boolean) returns boolean
language sql as $$ select pgmq.drop_queue(queue_name) $$;

-- Archives are no members of the extension, so there is nothing to detach.
create function pgmq.detach_archive(queue_name text) returns void
language sql as $$ select $$;

create function pgmq.list_queues() returns setof pgmq.queue_record
language sql as $$ select queue_name, is_partitioned, is_unlogged, created_at from pgmq.meta order by created_at, queue_name $$;

create function pgmq.metrics(queue_name text) returns pgmq.metrics_result
language plpgsql
as $$
declare
    messages text := pgmq.format_table_name(queue_name, 'q');
    result pgmq.metrics_result;
begin
    execute format('
        select $1, count(*), extract(epoch from now() - max(enqueued_at))::integer,
            extract(epoch from now() - min(enqueued_at))::integer,
            (select case when is_called then last_value else 0 end from %s), now(),
            count(*) filter (where vt <= clock_timestamp())
        from pgmq.%I', pg_get_serial_sequence(format('pgmq.%I', messages), 'msg_id'), messages)
        into result using queue_name;
    return result;
end
$$;

create function pgmq.metrics_all() returns setof pgmq.metrics_result
language sql as $$ select measured.* from pgmq.meta, pgmq.metrics(meta.queue_name) as measured order by meta.queue_name $$;

do $$
declare
    member record;
begin
    for member in
        select dependent.classid, dependent.objid
        from pg_catalog.pg_depend as dependent
        join pg_catalog.pg_extension as extension on extension.oid operator(pg_catalog.=) dependent.refobjid
        where extension.extname operator(pg_catalog.=) 'pgmq'
            and dependent.refclassid operator(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
    loop
        if member.classid operator(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass then
            execute pg_catalog.format('alter function %s owner to postgres', member.objid::pg_catalog.regprocedure);
        end if;
    end loop;
end
$$;
alter table pgmq.meta owner to postgres;
alter type pgmq.message_record owner to postgres;
alter type pgmq.queue_record owner to postgres;
alter type pgmq.metrics_result owner to postgres;
