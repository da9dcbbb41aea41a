-- Short unique identifiers from integers (hashids.org, version 1.0 of the algorithm). The interface is that of pg_hashids 1.3, with
-- hexadecimal numbers in addition. A text that is no identifier is decoded to an empty array. Alphabets are ASCII; salts are used as
-- UTF-8.

create function @extschema@.hashids_alphabet() returns text
language sql immutable parallel safe
as $$ select 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890' $$;

-- Exchanges the bytes of an alphabet in an order that the salt determines.
create function @extschema@.hashids_shuffle(alphabet bytea, salt bytea) returns bytea
language plpgsql immutable strict parallel safe
as $$
declare
    place integer := 0;
    total integer := 0;
    code integer;
    other integer;
    moved integer;
begin
    if length(salt) = 0 then
        return alphabet;
    end if;
    for index in reverse length(alphabet) - 1 .. 1 loop
        place := place % length(salt);
        code := get_byte(salt, place);
        total := total + code;
        other := (code + place + total) % index;
        moved := get_byte(alphabet, index);
        alphabet := set_byte(set_byte(alphabet, index, get_byte(alphabet, other)), other, moved);
        place := place + 1;
    end loop;
    return alphabet;
end
$$;

-- Divides an alphabet into the digits of numbers, the separators between numbers, and the guards around short identifiers.
create function @extschema@.hashids_divide(
    salt bytea, given text, out alphabet bytea, out separators bytea, out guards bytea
)
language plpgsql immutable strict parallel safe
as $$
declare
    letter bytea;
    wanted integer;
begin
    alphabet := '';
    separators := '';
    if given ~ '[^!-~]' then
        raise exception 'an alphabet has printable ASCII characters only' using errcode = 'invalid_parameter_value';
    end if;
    for place in 1 .. length(given) loop
        letter := convert_to(substr(given, place, 1), 'UTF8');
        if position(letter in alphabet) = 0 then
            alphabet := alphabet || letter;
        end if;
    end loop;
    if length(alphabet) < 16 then
        raise exception 'an alphabet has at least 16 different characters' using errcode = 'invalid_parameter_value';
    end if;
    foreach letter in array array['c', 'f', 'h', 'i', 's', 't', 'u', 'C', 'F', 'H', 'I', 'S', 'T', 'U']::bytea[] loop
        wanted := position(letter in alphabet);
        if wanted > 0 then
            separators := separators || letter;
            alphabet := substring(alphabet for wanted - 1) || substring(alphabet from wanted + 1);
        end if;
    end loop;
    separators := @extschema@.hashids_shuffle(separators, salt);
    if length(separators) = 0 or length(alphabet)::numeric / length(separators) > 3.5 then
        wanted := greatest(ceil(length(alphabet) / 3.5)::integer, 2);
        if wanted > length(separators) then
            wanted := wanted - length(separators);
            separators := separators || substring(alphabet for wanted);
            alphabet := substring(alphabet from wanted + 1);
        else
            separators := substring(separators for wanted);
        end if;
    end if;
    alphabet := @extschema@.hashids_shuffle(alphabet, salt);
    wanted := ceil(length(alphabet) / 12.0)::integer;
    if length(alphabet) < 3 then
        guards := substring(separators for wanted);
        separators := substring(separators from wanted + 1);
    else
        guards := substring(alphabet for wanted);
        alphabet := substring(alphabet from wanted + 1);
    end if;
end
$$;

create function @extschema@.id_encode(
    numbers bigint[], salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns text
language plpgsql immutable strict parallel safe
as $$
declare
    key constant bytea := convert_to(salt, 'UTF8');
    digits bytea;
    separators bytea;
    guards bytea;
    number bigint;
    rest bigint;
    total bigint := 0;
    lottery bytea;
    part bytea;
    encoded bytea;
    half integer;
begin
    if cardinality(numbers) = 0 then
        return '';
    end if;
    select d.alphabet, d.separators, d.guards into digits, separators, guards
    from @extschema@.hashids_divide(key, alphabet) as d;
    for place in 1 .. cardinality(numbers) loop
        if numbers[place] is null or numbers[place] < 0 then
            raise exception 'numbers from 0 can be encoded' using errcode = 'invalid_parameter_value';
        end if;
        total := total + numbers[place] % (place + 99);
    end loop;
    lottery := substring(digits from (total % length(digits))::integer + 1 for 1);
    encoded := lottery;
    for place in 1 .. cardinality(numbers) loop
        digits := @extschema@.hashids_shuffle(digits, substring(lottery || key || digits for length(digits)));
        number := numbers[place];
        rest := number;
        part := '';
        loop
            part := substring(digits from (rest % length(digits))::integer + 1 for 1) || part;
            rest := rest / length(digits);
            exit when rest = 0;
        end loop;
        encoded := encoded || part;
        if place < cardinality(numbers) then
            number := number % (get_byte(part, 0) + place - 1);
            encoded := encoded || substring(separators from (number % length(separators))::integer + 1 for 1);
        end if;
    end loop;
    if length(encoded) < min_length then
        encoded := substring(guards from ((total + get_byte(encoded, 0)) % length(guards))::integer + 1 for 1) || encoded;
        if length(encoded) < min_length then
            encoded := encoded || substring(guards from ((total + get_byte(encoded, 2)) % length(guards))::integer + 1 for 1);
        end if;
    end if;
    half := length(digits) / 2;
    while length(encoded) < min_length loop
        digits := @extschema@.hashids_shuffle(digits, digits);
        encoded := substring(digits from half + 1) || encoded || substring(digits for half);
        if length(encoded) > min_length then
            encoded := substring(encoded from (length(encoded) - min_length) / 2 + 1 for min_length);
        end if;
    end loop;
    return convert_from(encoded, 'UTF8');
end
$$;

create function @extschema@.id_encode(
    number bigint, salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns text
language sql immutable strict parallel safe
as $$ select @extschema@.id_encode(array[number], salt, min_length, alphabet) $$;

-- A number is decoded only if it is encoded as the same text: any other text was made with another salt.
create function @extschema@.id_decode(
    hash text, salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns bigint[]
language plpgsql immutable strict parallel safe
as $$
declare
    key constant bytea := convert_to(salt, 'UTF8');
    text_bytes constant bytea := convert_to(hash, 'UTF8');
    digits bytea;
    separators bytea;
    guards bytea;
    letter bytea;
    -- The identifier without what is around its guards.
    inner_bytes bytea := '';
    guards_seen integer := 0;
    lottery bytea;
    number numeric := 0;
    digit integer;
    decoded bigint[] := '{}';
begin
    select d.alphabet, d.separators, d.guards into digits, separators, guards
    from @extschema@.hashids_divide(key, alphabet) as d;
    -- With one or two guards, the identifier follows the first of them.
    for place in 1 .. length(text_bytes) loop
        letter := substring(text_bytes from place for 1);
        if position(letter in guards) > 0 then
            guards_seen := guards_seen + 1;
            if guards_seen = 1 then
                inner_bytes := '';
            end if;
        elsif guards_seen < 2 then
            inner_bytes := inner_bytes || letter;
        end if;
    end loop;
    if guards_seen > 2 or length(inner_bytes) < 2 then
        return '{}';
    end if;
    lottery := substring(inner_bytes for 1);
    digits := @extschema@.hashids_shuffle(digits, substring(lottery || key || digits for length(digits)));
    for place in 2 .. length(inner_bytes) loop
        letter := substring(inner_bytes from place for 1);
        if position(letter in separators) > 0 then
            decoded := decoded || number::bigint;
            number := 0;
            digits := @extschema@.hashids_shuffle(digits, substring(lottery || key || digits for length(digits)));
            continue;
        end if;
        digit := position(letter in digits) - 1;
        number := number * length(digits) + digit;
        if digit < 0 or number > 9223372036854775807 then
            return '{}';
        end if;
    end loop;
    decoded := decoded || number::bigint;
    if @extschema@.id_encode(decoded, salt, min_length, alphabet) <> hash then
        return '{}';
    end if;
    return decoded;
end
$$;

create function @extschema@.id_decode_once(
    hash text, salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns bigint
language sql immutable strict parallel safe
as $$ select (@extschema@.id_decode(hash, salt, min_length, alphabet))[1] $$;

-- Hexadecimal numbers of any length: twelve digits at a time, after a one that keeps leading zeros.
create function @extschema@.id_encode_hex(
    hex text, salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns text
language plpgsql immutable strict parallel safe
as $$
begin
    if hex !~ '^[0-9A-Fa-f]+$' then
        return '';
    end if;
    return @extschema@.id_encode(
        array(
            select ('x' || lpad('1' || substr(hex, place, 12), 16, '0'))::bit(64)::bigint
            from generate_series(1, length(hex), 12) as place
            order by place
        ), salt, min_length, alphabet
    );
end
$$;

create function @extschema@.id_decode_hex(
    hash text, salt text default '', min_length integer default 0,
    alphabet text default @extschema@.hashids_alphabet()
) returns text
language sql immutable strict parallel safe
as $$
    select coalesce(string_agg(substr(to_hex(number), 2), '' order by place), '')
    from unnest(@extschema@.id_decode(hash, salt, min_length, alphabet)) with ordinality as decoded (number, place)
$$;

-- The names of the first version.
create function @extschema@.hash_encode(number bigint, salt text default '', min_length integer default 0) returns text
language sql immutable strict parallel safe
as $$ select @extschema@.id_encode(number, salt, min_length) $$;

create function @extschema@.hash_decode(hash text, salt text, min_length integer) returns integer
language sql immutable strict parallel safe
as $$ select @extschema@.id_decode_once(hash, salt, min_length)::integer $$;
