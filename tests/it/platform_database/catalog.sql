-- The catalog of a database in the form of facts.txt, one fact per row.
select format('role %s %s %s', rolname, attribute, value::text)
from pg_roles, lateral (values
    ('super', rolsuper), ('inherit', rolinherit), ('createrole', rolcreaterole), ('createdb', rolcreatedb), ('login', rolcanlogin),
    ('replication', rolreplication), ('bypassrls', rolbypassrls)) as attributes (attribute, value)
union all
select format('role %s setting %s', rolname, setting)
from pg_roles, unnest(rolconfig) as setting
union all
select format('schema %s %s', nspname, pg_get_userbyid(nspowner)) from pg_namespace
union all
select format('enum %s.%s %s', nspname, typname, (select string_agg(enumlabel, ',' order by enumsortorder) from pg_enum where enumtypid = t.oid))
from pg_type t join pg_namespace n on n.oid = typnamespace
where typtype = 'e'
union all
select format('composite %s.%s %s', nspname, relname, (
    select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, atttypmod), ', ' order by attnum)
    from pg_attribute where attrelid = c.oid and attnum > 0))
from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind = 'c'
union all
select format('table %s.%s %s %s rls %s', nspname, relname, relkind, pg_get_userbyid(relowner), relrowsecurity::text)
from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind in ('r', 'p')
union all
select format('column %s.%s.%s %s%s%s%s%s', nspname, relname, attname, format_type(atttypid, atttypmod),
    case when attnotnull then ' not null' else '' end,
    ' default ' || pg_get_expr(adbin, adrelid),
    case when attgenerated <> '' then ' generated' else '' end,
    case when attidentity <> '' then ' identity' else '' end)
from pg_attribute a
join pg_class c on c.oid = attrelid
join pg_namespace n on n.oid = relnamespace
left join pg_attrdef d on d.adrelid = attrelid and adnum = attnum
where relkind in ('r', 'p') and attnum > 0
union all
select format('constraint %s.%s %s %s (%s)%s%s', n.nspname, c.relname, conname, contype, (
        select string_agg(attname, ',' order by position)
        from unnest(conkey) with ordinality as k (number, position)
        join pg_attribute on attrelid = conrelid and attnum = number),
    case when contype = 'f' then format(' references %s on delete %s', confrelid::regclass, confdeltype) end,
    ' check ' || pg_get_expr(conbin, conrelid))
from pg_constraint
join pg_class c on c.oid = conrelid
join pg_namespace n on n.oid = c.relnamespace
union all
select format('index %s.%s %s %s%s (%s)%s', n.nspname, t.relname, i.relname, amname,
    case when indisunique then ' unique' else '' end,
    (select string_agg(pg_get_indexdef(indexrelid, position, true), ', ' order by position) from generate_series(1, indnkeyatts) as position),
    ' where ' || pg_get_expr(indpred, indrelid))
from pg_index
join pg_class i on i.oid = indexrelid
join pg_class t on t.oid = indrelid
join pg_namespace n on n.oid = t.relnamespace
join pg_am on pg_am.oid = i.relam
union all
select format('trigger %s.%s %s %s %s', n.nspname, relname, tgname, tgfoid::regproc, tgtype)
from pg_trigger
join pg_class c on c.oid = tgrelid
join pg_namespace n on n.oid = relnamespace
where not tgisinternal
union all
select format('function %s.%s(%s) %s %s %s%s %s', nspname, proname, pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid),
    lanname, provolatile, case when prosecdef then ' definer' else '' end, pg_get_userbyid(proowner))
from pg_proc p
join pg_namespace n on n.oid = pronamespace
join pg_language l on l.oid = prolang
union all
select format('publication %s %s', pubname, pg_get_userbyid(pubowner)) from pg_publication
union all
select format('setting %s %s %s', coalesce(datname, '*'), coalesce(rolname, '*'), setting)
from pg_db_role_setting s
left join pg_database d on d.oid = setdatabase
left join pg_roles r on r.oid = setrole, unnest(setconfig) as setting
union all
select format('migration auth %s', version) from auth.schema_migrations
union all
select format('migration realtime %s', version) from realtime.schema_migrations
union all
select format('migration storage %s', name) from storage.migrations
union all
select format('extension %s %s', extname, nspname) from pg_extension join pg_namespace n on n.oid = extnamespace
