-- JSON Web Tokens with a shared secret (RFC 7515, RFC 7519): HS256, HS384 and HS512. The interface is that of pgjwt 0.2.0.
-- PostgreSQL's own digests are used, so that the schema of pgcrypto does not matter.
create function @extschema@.url_encode(data bytea) returns text
language sql immutable parallel safe
as $$ select translate(encode(data, 'base64'), E'+/=\n', '-_') $$;

create function @extschema@.url_decode(data text) returns bytea
language sql immutable parallel safe
as $$
    select decode(rpad(translate(data, '-_', '+/'), 4 * ((length(data) + 3) / 4), '='), 'base64')
$$;

create function @extschema@.algorithm_sign(signables text, secret text, algorithm text) returns text
language plpgsql immutable parallel safe
as $$
declare
    block_bytes constant integer := case algorithm when 'HS256' then 64 else 128 end;
    key bytea := convert_to(secret, 'UTF8');
    inner_key bytea := '';
    outer_key bytea := '';
    value integer;
begin
    if signables is null or secret is null or algorithm is null then
        return null;
    end if;
    if algorithm not in ('HS256', 'HS384', 'HS512') then
        raise exception 'algorithm % is not supported', algorithm
            using errcode = 'invalid_parameter_value', hint = 'Use HS256, HS384 or HS512.';
    end if;
    -- HMAC (RFC 2104).
    if length(key) > block_bytes then
        key := case algorithm when 'HS256' then sha256(key) when 'HS384' then sha384(key) else sha512(key) end;
    end if;
    inner_key := decode(repeat('36', block_bytes), 'hex');
    outer_key := decode(repeat('5c', block_bytes), 'hex');
    for index in 0 .. length(key) - 1 loop
        value := get_byte(key, index);
        inner_key := set_byte(inner_key, index, value # 54);
        outer_key := set_byte(outer_key, index, value # 92);
    end loop;
    inner_key := inner_key || convert_to(signables, 'UTF8');
    return @extschema@.url_encode(case algorithm
        when 'HS256' then sha256(outer_key || sha256(inner_key))
        when 'HS384' then sha384(outer_key || sha384(inner_key))
        else sha512(outer_key || sha512(inner_key))
    end);
end
$$;

create function @extschema@.sign(payload json, secret text, algorithm text default 'HS256') returns text
language sql immutable parallel safe
as $$
    select signables || '.' || @extschema@.algorithm_sign(signables, secret, algorithm)
    from (
        select @extschema@.url_encode(convert_to(format('{"alg":"%s","typ":"JWT"}', algorithm), 'UTF8'))
            || '.' || @extschema@.url_encode(convert_to(payload::text, 'UTF8')) as signables
    ) as unsigned
$$;

create function @extschema@.try_cast_double(inp text) returns double precision
language plpgsql immutable parallel safe
as $$
begin
    return inp::double precision;
exception when others then
    return null;
end
$$;

-- `valid` covers the signature and the claims nbf and exp.
create function @extschema@.verify(token text, secret text, algorithm text default 'HS256')
returns table (header json, payload json, valid boolean)
language sql stable parallel safe
as $$
    select decoded.header, decoded.payload,
        coalesce(decoded.signature = @extschema@.algorithm_sign(decoded.signables, secret, algorithm), false)
        and current_timestamp >= coalesce(to_timestamp(@extschema@.try_cast_double(decoded.payload ->> 'nbf')), '-infinity')
        and current_timestamp < coalesce(to_timestamp(@extschema@.try_cast_double(decoded.payload ->> 'exp')), 'infinity')
    from (
        select convert_from(@extschema@.url_decode(split_part(token, '.', 1)), 'UTF8')::json as header,
            convert_from(@extschema@.url_decode(split_part(token, '.', 2)), 'UTF8')::json as payload,
            split_part(token, '.', 1) || '.' || split_part(token, '.', 2) as signables,
            split_part(token, '.', 3) as signature
    ) as decoded
$$;
