-- Beginning of a key up to and including the first delimiter after the prefix. NULL if there is none.
create or replace function storage.get_common_prefix(p_key text, p_prefix text, p_delimiter text) returns text
language sql immutable
as $$
    select case
        when position(p_delimiter in substr(p_key, length(p_prefix) + 1)) > 0 then
            left(p_key, length(p_prefix) + position(p_delimiter in substr(p_key, length(p_prefix) + 1)) + length(p_delimiter) - 1)
    end
$$;
alter function storage.get_common_prefix(text, text, text) owner to supabase_storage_admin;
