-- $1: names of schemas, as a JSON array.
with schema as (
    select n.oid, n.nspname::text as name
    from pg_namespace n
    where n.nspname in (select json_array_elements_text($1::json)) and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
), relation as (
    select c.oid, c.relkind, c.reltype, s.name as schema, c.relname::text as name, pg_relation_is_updatable(c.oid, false) as changes
    from pg_class c join schema s on s.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'f', 'v', 'm', 'c')
), routine as (
    select p.*, s.name as schema, p.pronargs - p.pronargdefaults as needed,
        coalesce(p.proallargtypes, p.proargtypes::oid[]) as kinds
    from pg_proc p join schema s on s.oid = p.pronamespace
    where p.prokind = 'f' and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
        -- Functions of extensions are not the customer's interface.
        and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
), argument as (
    select p.oid as routine, a.place, coalesce(p.proargnames[a.place], '') as name, a.kind,
        coalesce(p.proargmodes[a.place]::text, 'i') as mode,
        row_number() over (partition by p.oid, coalesce(p.proargmodes[a.place]::text, 'i') in ('i', 'b', 'v') order by a.place) as nth,
        p.needed
    from routine p, unnest(p.kinds) with ordinality a(kind, place)
)
select json_build_object(
    'schemas', (select coalesce(json_agg(name order by name collate "C"), '[]') from schema),
    'relations', (
        select coalesce(json_agg(json_build_object(
            'id', c.oid::int8, 'schema', c.schema, 'name', c.name,
            'kind', case c.relkind when 'v' then 'view' when 'm' then 'materialized' when 'c' then 'composite' else 'table' end,
            'insertable', c.changes & 8 = 8, 'updatable', c.changes & 4 = 4,
            'comment', obj_description(c.oid, 'pg_class'),
            'columns', (
                select coalesce(json_agg(json_build_object(
                    'name', a.attname, 'kind', a.atttypid::int8, 'format', format_type(a.atttypid, a.atttypmod),
                    'nullable', not a.attnotnull and not (t.typtype = 'd' and t.typnotnull),
                    'has_default', a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
                    'always_generated', a.attidentity = 'a' or a.attgenerated <> '',
                    'comment', col_description(c.oid, a.attnum)
                ) order by a.attname::text collate "C"), '[]')
                from pg_attribute a join pg_type t on t.oid = a.atttypid
                where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
            'primary_key', (
                select coalesce(json_agg(a.attname order by k.place), '[]')
                from pg_constraint p, unnest(p.conkey) with ordinality k(number, place), pg_attribute a
                where p.conrelid = c.oid and p.contype = 'p' and a.attrelid = c.oid and a.attnum = k.number)
        ) order by c.schema collate "C", c.name collate "C"), '[]')
        from relation c),
    'foreign_keys', (
        select coalesce(json_agg(json_build_object(
            'name', k.conname, 'table', k.conrelid::int8, 'schema', m.nspname, 'table_name', c.relname,
            'column_numbers', k.conkey, 'referenced', k.confrelid::int8, 'referenced_numbers', k.confkey,
            'columns', (select json_agg(a.attname order by u.place) from unnest(k.conkey) with ordinality u(number, place)
                        join pg_attribute a on a.attrelid = k.conrelid and a.attnum = u.number),
            'referenced_schema', n.nspname, 'referenced_table', r.relname,
            'referenced_columns', (select json_agg(a.attname order by u.place) from unnest(k.confkey) with ordinality u(number, place)
                                   join pg_attribute a on a.attrelid = k.confrelid and a.attnum = u.number),
            'one_to_one', exists (select from pg_constraint o where o.conrelid = k.conrelid and o.contype in ('p', 'u')
                                  and o.conkey @> k.conkey and o.conkey <@ k.conkey)
        ) order by k.conname::text collate "C", r.relname::text collate "C"), '[]')
        from pg_constraint k join pg_class c on c.oid = k.conrelid join pg_namespace m on m.oid = c.relnamespace
            join pg_class r on r.oid = k.confrelid join pg_namespace n on n.oid = r.relnamespace
        -- A partition's copy of its parent's key says nothing new.
        where k.contype = 'f' and k.conparentid = 0),
    'views', (
        select coalesce(json_agg(json_build_object(
            'id', c.oid::int8, 'schema', n.nspname, 'name', c.relname,
            'columns', (select coalesce(json_agg(a.attname order by a.attnum), '[]') from pg_attribute a
                        where a.attrelid = c.oid and a.attnum > 0),
            -- What a view is, is a tree of some hundred bytes for every word of it; `views` needs these few. A brace in a name has a
            -- backslash before it.
            'rule', (select string_agg(t.found[1], ' ' order by t.place)
                     from regexp_matches(w.ev_action::text, '\\.|[{}]|:res(?:no|origtbl|origcol) \d+', 'g') with ordinality t(found, place)
                     where t.found[1] !~ '^\\')
        ) order by n.nspname::text collate "C", c.relname::text collate "C"), '[]')
        from pg_rewrite w join pg_class c on c.oid = w.ev_class join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('v', 'm') and w.ev_type = '1' and n.nspname not in ('pg_catalog', 'information_schema')),
    'functions', (
        select coalesce(json_agg(json_build_object(
            'schema', p.schema, 'name', p.proname, 'returns', p.prorettype::int8, 'set', p.proretset,
            'comment', obj_description(p.oid, 'pg_proc'),
            'arguments', (select coalesce(json_agg(json_build_object('name', a.name, 'kind', a.kind::int8, 'has_default', a.nth > a.needed)
                                          order by a.place), '[]') from argument a where a.routine = p.oid and a.mode in ('i', 'b', 'v')),
            'columns', (select coalesce(json_agg(json_build_object('name', a.name, 'kind', a.kind::int8, 'has_default', false)
                                        order by a.place), '[]') from argument a
                        where a.routine = p.oid and a.mode in ('o', 'b', 't') and (p.prorettype = 'record'::regtype or a.mode = 't'))
        ) order by p.schema collate "C", p.proname::text collate "C", pg_get_function_identity_arguments(p.oid) collate "C"), '[]')
        from routine p),
    'types', (
        select coalesce(json_agg(json_build_object(
            'id', t.oid::int8, 'schema', n.nspname, 'name', t.typname,
            'element', case when t.typcategory = 'A' and t.typelem <> 0 then t.typelem::int8 end,
            'base', case when t.typtype = 'd' then t.typbasetype::int8 end,
            'labels', case when t.typtype = 'e' then (select coalesce(json_agg(e.enumlabel order by e.enumsortorder), '[]')
                                                      from pg_enum e where e.enumtypid = t.oid) end,
            'relation', case when t.typtype = 'c' then t.typrelid::int8 end
        ) order by t.typname::text collate "C"), '[]')
        from pg_type t join pg_namespace n on n.oid = t.typnamespace
        where n.nspname not in ('information_schema', 'pg_toast'))
)
