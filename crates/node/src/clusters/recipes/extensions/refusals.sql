-- Names the operator's remedy where an extension is not installed or not permitted; PostgreSQL's own error has none. The
-- name is read from the text of the query. If the text creates several extensions, a warning comes before PostgreSQL's error.
create or replace function extensions.explain_missing_extension() returns event_trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    mentioned text[];
    missing text[];
    denied text[];
begin
    if (select rolsuper from pg_roles where rolname = current_user) then
        return;
    end if;
    -- Of a long text only the beginning is examined.
    mentioned := array(
        select distinct coalesce(part[1], lower(part[2]))
        from regexp_matches(left(current_query(), 100000),
            '\mcreate\s+extension\s+(?:if\s+not\s+exists\s+)?(?:"([^"]{1,63})"|([a-z_][a-z0-9_$]{0,62}))', 'gi') as part);
    missing := array(
        select name from unnest(mentioned) as name
        except select extname::text from pg_extension
        except select available.name::text from pg_available_extensions() as available);
    denied := array(
        select name from unnest(mentioned) as mention(name)
        where name <> all (missing) and not exists (select from pg_extension where extname = name) and not exists (
            select from pg_available_extension_versions() as version
            where version.name = mention.name and (version.trusted or not version.superuser)));
    if cardinality(mentioned) = 1 and cardinality(missing) = 1 then
        raise exception using
            errcode = 'feature_not_supported',
            message = format('extension "%s" is not available', missing[1]),
            detail = 'Its files are not installed for this version of PostgreSQL.',
            -- Those of the first list have a library that no registry has.
            hint = case when missing[1] in ('pg_tle', 'pgroonga', 'pgsodium', 'wrappers')
                then 'The engine supabase-17 has it. The operator of this server can install that; see: gantry engine install supabase-17 --from DIR'
                else format('The operator of this server can install it; see: gantry extension install %s --engine %s', missing[1],
                            current_setting('server_version_num')::integer / 10000)
            end;
    elsif cardinality(mentioned) = 1 and cardinality(denied) = 1 then
        raise exception using
            errcode = 'insufficient_privilege',
            message = format('permission denied to create extension "%s"', denied[1]),
            hint = format('The operator of this server can permit it, unless it reaches outside of the database; see: gantry extension allow %s', denied[1]);
    elsif cardinality(missing) > 0 then
        raise warning 'extensions are not available: %', array_to_string(missing, ', ')
            using hint = 'The operator of this server can install them; see: gantry extension install';
    end if;
end
$$;
