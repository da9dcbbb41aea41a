-- Objects of a database that its owner made, with a digest of their definitions. Objects of extensions and of the platform's
-- services are left out, as are privileges and comments. An object inside a table names the table.
with schema as (
    select oid, nspname from pg_namespace
    where nspname !~ '^pg_' and nspname not in ('information_schema', 'supabase_migrations')
), platform_role as (
    select oid from pg_roles where rolsuper or rolname ~ '^(supabase_|gantry_|pgbouncer$)'
), member as (
    select classid, objid from pg_depend where deptype = 'e'
), relation as (
    select c.oid, c.relkind, format('%I.%I', s.nspname, c.relname) as name, c.relowner in (table platform_role) as is_platform,
        concat(c.relrowsecurity, c.relforcerowsecurity, c.reloptions::text) as options
    from pg_class c join schema s on s.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'f', 'v', 'm', 'S')
        and (('pg_class'::regclass)::oid, c.oid) not in (table member)
), own as (
    select * from relation where not is_platform
), routine as (
    select p.oid, p.prokind, format('%I.%I(%s)', s.nspname, p.proname, pg_get_function_identity_arguments(p.oid)) as name
    from pg_proc p join schema s on s.oid = p.pronamespace
    where p.proowner not in (table platform_role) and (('pg_proc'::regclass)::oid, p.oid) not in (table member)
), object (kind, name, within, definition) as (
    select 'extension', quote_ident(extname), null, '' from pg_extension
    union all
    select 'schema', quote_ident(n.nspname), null, '' from pg_namespace n join schema using (oid)
    where n.nspowner not in (table platform_role)
    union all
    select case relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
            when 'f' then 'foreign table' else 'table' end,
        name, null, concat(options, case when relkind in ('v', 'm') then pg_get_viewdef(oid) end)
    from own
    where relkind <> 'S' or not exists (
        select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = own.oid and d.deptype in ('a', 'i'))
    union all
    select 'column', quote_ident(a.attname), r.name,
        concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid))
    from own r join pg_attribute a on a.attrelid = r.oid left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
    where r.relkind in ('r', 'p', 'f') and a.attnum > 0 and not a.attisdropped
    union all
    select 'constraint', quote_ident(k.conname), r.name, pg_get_constraintdef(k.oid)
    from own r join pg_constraint k on k.conrelid = r.oid
    where k.contype in ('c', 'f', 'p', 'u', 'x')
    union all
    select 'index', quote_ident(c.relname), r.name, pg_get_indexdef(i.indexrelid)
    from own r join pg_index i on i.indrelid = r.oid join pg_class c on c.oid = i.indexrelid
    where not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
    union all
    select 'policy', quote_ident(p.polname), r.name,
        concat_ws(' ', p.polcmd, p.polpermissive,
            (select string_agg(rolname, ' ' order by rolname) from pg_roles where oid = any (p.polroles)),
            pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    from relation r join pg_policy p on p.polrelid = r.oid
    union all
    select 'trigger', quote_ident(t.tgname), r.name, concat(t.tgenabled, pg_get_triggerdef(t.oid))
    from relation r join pg_trigger t on t.tgrelid = r.oid join pg_proc p on p.oid = t.tgfoid
    where not t.tgisinternal and (not r.is_platform or p.proowner not in (table platform_role))
    union all
    select case prokind when 'p' then 'procedure' when 'a' then 'aggregate' else 'function' end, name, null,
        case when prokind in ('f', 'p') then pg_get_functiondef(oid) end
    from routine
    union all
    select case t.typtype when 'd' then 'domain' else 'type' end, format('%I.%I', s.nspname, t.typname), null,
        concat_ws(' ', case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) end, t.typnotnull, t.typdefault,
            (select string_agg(quote_literal(e.enumlabel), ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid),
            (select string_agg(concat_ws(' ', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod)), ',' order by a.attnum)
             from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped))
    from pg_type t join schema s on s.oid = t.typnamespace left join pg_class c on c.oid = t.typrelid
    where t.typowner not in (table platform_role) and (t.typtype in ('d', 'e', 'r') or c.relkind = 'c')
        and (('pg_type'::regclass)::oid, t.oid) not in (table member)
)
select kind, name, within, md5(definition) from object
