-- Sealing of secrets: AES-256-CBC, then HMAC-SHA-256 over the secret's id, the initialization vector and the ciphertext. The key
-- is a file beside the data directory, which only the server and the platform can read: neither a dump nor a copy of the data
-- directory contains it. Both ciphers are those of pgcrypto's library, bound here to functions that the tenant cannot replace,
-- as the functions below run as superuser.
create or replace function vault._encrypt(bytea, bytea, bytea, text) returns bytea
    language c immutable strict parallel safe as '$libdir/pgcrypto', 'pg_encrypt_iv';
create or replace function vault._decrypt(bytea, bytea, bytea, text) returns bytea
    language c immutable strict parallel safe as '$libdir/pgcrypto', 'pg_decrypt_iv';
create or replace function vault._hmac(bytea, bytea, text) returns bytea
    language c immutable strict parallel safe as '$libdir/pgcrypto', 'pg_hmac';
create or replace function vault._random_bytes(integer) returns bytea
    language c volatile strict parallel safe as '$libdir/pgcrypto', 'pg_random_bytes';

-- Key for one of the two purposes, derived from the project's key.
create or replace function vault._key(purpose text) returns bytea
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := pg_read_binary_file(regexp_replace(current_setting('data_directory'), '/[^/]+/?$', '') || '/vault.key');
begin
    if octet_length(key) <> 32 then
        raise exception 'the vault key of this project is damaged' using hint = 'Restore the file vault.key from a backup.';
    end if;
    return vault._hmac(convert_to(purpose, 'UTF8'), key, 'sha256');
end
$$;

create or replace function vault._seal(secret text, id uuid) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    iv bytea := vault._random_bytes(16);
    ciphertext bytea := vault._encrypt(convert_to(secret, 'UTF8'), vault._key('encryption'), iv, 'aes-cbc/pad:pkcs');
begin
    return translate(
        encode(iv || ciphertext || vault._hmac(uuid_send(id) || iv || ciphertext, vault._key('authentication'), 'sha256'), 'base64'),
        E'\n', '');
end
$$;

create or replace function vault._open(sealed text, id uuid) returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    bytes bytea := decode(sealed, 'base64');
    body bytea := substr(bytes, 1, octet_length(bytes) - 32);
begin
    if vault._hmac(uuid_send(id) || body, vault._key('authentication'), 'sha256') <> substr(bytes, octet_length(bytes) - 31) then
        raise exception 'secret % was sealed with another key or changed afterwards', id;
    end if;
    return convert_from(
        vault._decrypt(substr(body, 17), vault._key('encryption'), substr(body, 1, 16), 'aes-cbc/pad:pkcs'), 'UTF8');
end
$$;

revoke all on function vault._encrypt, vault._decrypt, vault._hmac, vault._random_bytes, vault._key, vault._seal, vault._open from public;
-- For GRANT … ON ALL FUNCTIONS IN SCHEMA vault, which fails for a function on which the owner has no privilege. They run with the
-- privileges of the caller, who cannot read the key.
grant execute on function vault._encrypt, vault._decrypt, vault._hmac, vault._random_bytes, vault._key, vault._seal to postgres;
-- Functions of a view run with the privileges of its reader.
grant execute on function vault._open to postgres with grant option;
grant execute on function vault._open to service_role;
