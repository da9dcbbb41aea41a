-- The interface of pg_net 0.19, so that applications which send requests can be installed: a request is a row in
-- net.http_request_queue, its response one in net._http_response. The server reaches no network: requests are sent by Gantry,
-- from outside of the server, which listens to the channel gantry_pg_net.
--
-- Everything belongs to the owner of the project. The functions that write the queue run with its rights, so that roles of the
-- Data API can send requests without access to the tables.
do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname operator(pg_catalog.=) 'net') then
        create schema net authorization postgres;
    end if;
end
$$;

create domain net.http_method as text check (
    value operator(pg_catalog.=) any (array['get', 'post', 'delete', 'GET', 'POST', 'DELETE'])
);
create type net.request_status as enum ('PENDING', 'SUCCESS', 'ERROR');
create type net.http_response as (status_code integer, headers jsonb, body text);
create type net.http_response_result as (status net.request_status, message text, response net.http_response);

create unlogged table net.http_request_queue (
    id bigserial primary key,
    method net.http_method not null,
    url text not null,
    headers jsonb,
    body bytea,
    timeout_milliseconds integer not null
);
create unlogged table net._http_response (
    id bigint,
    status_code integer,
    content_type text,
    headers jsonb,
    content text,
    timed_out boolean,
    error_msg text,
    created timestamptz not null default now()
);
create index on net._http_response (id);
create index on net._http_response (created);

-- Wakes the sender when the transaction of a request is committed.
create function net._announce_requests() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('gantry_pg_net', '');
    return null;
end
$$;
create trigger announce_requests after insert on net.http_request_queue
    for each statement execute function net._announce_requests();

create function net._urlencode_string(string varchar) returns text
language sql immutable strict parallel safe
as $$
    select coalesce(string_agg(
        case when part[1] ~ '^[A-Za-z0-9_.~-]$' then part[1]
            else regexp_replace(upper(encode(convert_to(part[1], 'UTF8'), 'hex')), '(..)', '%\1', 'g')
        end, '' order by position), '')
    from regexp_matches(string::text, '.', 'gs') with ordinality as parts (part, position)
$$;

-- Appends parameters `name=value`, which are encoded already.
create function net._encode_url_with_params_array(url text, params_array text[]) returns text
language sql immutable strict parallel safe
as $$
    select case when cardinality(params_array) = 0 then url
        else split_part(url, '#', 1) || case when strpos(url, '?') > 0 then '&' else '?' end
            || array_to_string(params_array, '&')
    end
$$;

create function net._queue_request(
    method text, url text, params jsonb, headers jsonb, body bytea, timeout_milliseconds integer
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    encoded text[];
    request_id bigint;
begin
    if url !~* '^https?://' then
        raise exception 'the URL of a request begins with http:// or https://' using errcode = 'invalid_parameter_value';
    end if;
    encoded := array(
        select net._urlencode_string(key::varchar) || '=' || net._urlencode_string(coalesce(value, '')::varchar)
        from jsonb_each_text(coalesce(params, '{}')));
    insert into net.http_request_queue (method, url, headers, body, timeout_milliseconds)
    values (method, net._encode_url_with_params_array(url, encoded), coalesce(headers, '{}'), body, timeout_milliseconds)
    returning id into request_id;
    return request_id;
end
$$;

create function net.http_get(
    url text, params jsonb default '{}', headers jsonb default '{}', timeout_milliseconds integer default 5000
) returns bigint
language sql strict
as $$ select net._queue_request('GET', url, params, headers, null, timeout_milliseconds) $$;

create function net.http_post(
    url text, body jsonb default '{}', params jsonb default '{}', headers jsonb default '{"Content-Type": "application/json"}',
    timeout_milliseconds integer default 5000
) returns bigint
language plpgsql
as $$
declare
    content_type text := (
        select value from jsonb_each_text(coalesce(headers, '{}')) where lower(key) = 'content-type' limit 1);
begin
    if content_type is null then
        headers := coalesce(headers, '{}') || '{"Content-Type": "application/json"}';
    elsif split_part(content_type, ';', 1) <> 'application/json' then
        raise exception 'Content-Type header must be "application/json"' using errcode = 'invalid_parameter_value';
    end if;
    return net._queue_request('POST', url, params, headers, convert_to(body::text, 'UTF8'), timeout_milliseconds);
end
$$;

create function net.http_delete(
    url text, params jsonb default '{}', headers jsonb default '{}', timeout_milliseconds integer default 5000,
    body jsonb default null
) returns bigint
language sql
as $$ select net._queue_request('DELETE', url, params, headers, convert_to(body::text, 'UTF8'), timeout_milliseconds) $$;

-- Returns the state of a request. With `async` false, waits up to 30 seconds for the response of a request that was committed.
create function net.http_collect_response(request_id bigint, async boolean default true) returns net.http_response_result
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    answer record;
    last_time timestamptz := clock_timestamp() + interval '30 seconds';
begin
    loop
        select * into answer from net._http_response as response where response.id = request_id limit 1;
        if found then
            if answer.error_msg is not null or answer.timed_out then
                return row('ERROR', coalesce(answer.error_msg, 'request timed out'), null)::net.http_response_result;
            end if;
            return row('SUCCESS', 'ok', row(answer.status_code, answer.headers, answer.content)::net.http_response)
                ::net.http_response_result;
        end if;
        if not exists (select from net.http_request_queue as queued where queued.id = request_id) then
            return row('ERROR', 'request matching request_id not found', null)::net.http_response_result;
        end if;
        if async or clock_timestamp() > last_time then
            return row('PENDING', 'request is pending processing', null)::net.http_response_result;
        end if;
        perform pg_sleep(0.1);
    end loop;
end
$$;

create function net._http_collect_response(request_id bigint, async boolean default true) returns net.http_response_result
language sql
as $$ select net.http_collect_response(request_id, async) $$;

create function net._await_response(request_id bigint) returns boolean
language sql
as $$ select (net.http_collect_response(request_id, false)).status <> 'PENDING' $$;

-- The worker is a session of Gantry. The owner of the project can see all sessions.
create function net.check_worker_is_up() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select from pg_stat_activity where usename = 'gantry_owner' and application_name = 'gantry pg_net')
    then
        raise exception 'the pg_net background worker is not up'
            using detail = 'Requests are queued, and sent when it is up.';
    end if;
end
$$;

create function net.wake() returns void
language sql as $$ select pg_catalog.pg_notify('gantry_pg_net', '') $$;

-- The sender has no settings that it would read again.
create function net.worker_restart() returns boolean
language sql as $$ select true from net.wake() $$;

alter table net.http_request_queue owner to postgres;
alter table net._http_response owner to postgres;
alter domain net.http_method owner to postgres;
alter type net.request_status owner to postgres;
alter type net.http_response owner to postgres;
alter type net.http_response_result owner to postgres;
alter function net._announce_requests() owner to postgres;
alter function net._urlencode_string(varchar) owner to postgres;
alter function net._encode_url_with_params_array(text, text[]) owner to postgres;
alter function net._queue_request(text, text, jsonb, jsonb, bytea, integer) owner to postgres;
alter function net.http_get(text, jsonb, jsonb, integer) owner to postgres;
alter function net.http_post(text, jsonb, jsonb, jsonb, integer) owner to postgres;
alter function net.http_delete(text, jsonb, jsonb, integer, jsonb) owner to postgres;
alter function net.http_collect_response(bigint, boolean) owner to postgres;
alter function net._http_collect_response(bigint, boolean) owner to postgres;
alter function net._await_response(bigint) owner to postgres;
alter function net.check_worker_is_up() owner to postgres;
alter function net.worker_restart() owner to postgres;
alter function net.wake() owner to postgres;
