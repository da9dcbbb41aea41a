//! Lints about performance.

use super::{Lint, LintLevel, customers, no_extensions};

/// Performance lints.
pub static LINTS: &[Lint] = &[
    Lint {
        name: "unindexed_foreign_keys",
        title: "Unindexed foreign keys",
        level: LintLevel::Info,
        description: "A foreign key has no index that begins with its columns: joins over it, and every removal of what it refers to, read the whole table.",
        remediation: "Run `create index on …` with the columns of the key.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has a foreign key `%I` without a covering index', n.nspname, c.relname, k.conname),
                 k.conname, json_build_object('fkey_name', k.conname, 'fkey_columns', k.conkey)
             from pg_constraint k join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace
             where k.contype = 'f' and k.conparentid = 0 and not exists (
                 select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indpred is null
                 -- The first columns of the index are those of the key, in any order.
                 and (i.indkey::int2[])[0:cardinality(k.conkey) - 1] @> k.conkey) and ",
            customers!()
        ),
    },
    Lint {
        name: "no_primary_key",
        title: "No primary key",
        level: LintLevel::Info,
        description: "A table has no primary key, so its rows cannot be identified, updated one by one or replicated.",
        remediation: "Run `alter table … add primary key (…)`.",
        sql: concat!(
            "select n.nspname, c.relname, 'table', format('Table `%I.%I` does not have a primary key', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where c.relkind in ('r', 'p') and not c.relispartition
                 and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary) and ",
            customers!(), " and ", no_extensions!("pg_class", "c.oid")
        ),
    },
    Lint {
        name: "unused_index",
        title: "Unused index",
        level: LintLevel::Info,
        description: "An index has not been used since statistics were last reset. Every write still has to maintain it.",
        remediation: "Run `drop index …`, unless replicas or rare jobs use the index.",
        sql: concat!(
            "select n.nspname, c.relname, 'table', format('Index `%I` on table `%I.%I` has not been used', x.relname, n.nspname, c.relname), x.relname, null::json
             from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class c on c.oid = i.indrelid
                 join pg_namespace n on n.oid = c.relnamespace
             where x.relkind = 'i' and pg_stat_get_numscans(x.oid) = 0 and not i.indisunique and not i.indisprimary
                 and not exists (select from pg_constraint k where k.conindid = x.oid) and ",
            customers!(), " and ", no_extensions!("pg_class", "c.oid")
        ),
    },
    Lint {
        name: "duplicate_index",
        title: "Duplicate index",
        level: LintLevel::Warn,
        description: "Several indexes of a table are identical. Each costs writes and space; one is enough.",
        remediation: "Drop all but one with `drop index …`.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has identical indexes {%s}', n.nspname, c.relname, string_agg(quote_ident(x.relname), ', ' order by x.relname)),
                 string_agg(x.relname, '_' order by x.relname), null::json
             from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class c on c.oid = i.indrelid
                 join pg_namespace n on n.oid = c.relnamespace
             where x.relkind = 'i' and ",
            customers!(),
            " group by n.nspname, c.relname, i.indrelid, x.relam, i.indkey::text, i.indclass::text, i.indcollation::text, i.indoption::text,
                 i.indnkeyatts, i.indisunique, pg_get_expr(i.indexprs, i.indrelid), pg_get_expr(i.indpred, i.indrelid)
             having count(*) > 1"
        ),
    },
    Lint {
        name: "multiple_permissive_policies",
        title: "Multiple permissive policies",
        level: LintLevel::Warn,
        description: "Several permissive policies apply to one role and one action. PostgreSQL evaluates each of them for every row.",
        remediation: "Combine them into one policy, with `or` between the conditions.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has multiple permissive policies for role `%s` for action `%s`: {%s}', n.nspname, c.relname,
                     coalesce(r.rolname, 'public'), a.name, string_agg(quote_ident(p.polname), ', ' order by p.polname)),
                 concat_ws('_', coalesce(r.rolname, 'public'), a.name), null::json
             from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace,
                 unnest(p.polroles) role(id) left join pg_roles r on r.oid = role.id,
                 (values ('r', 'SELECT'), ('a', 'INSERT'), ('w', 'UPDATE'), ('d', 'DELETE')) a(code, name)
             where p.polpermissive and c.relrowsecurity and p.polcmd in ('*', a.code::\"char\") and ",
            customers!(), " group by n.nspname, c.relname, r.rolname, a.name having count(*) > 1"
        ),
    },
    Lint {
        name: "auth_rls_initplan",
        title: "Auth RLS initialization plan",
        level: LintLevel::Warn,
        description: "A policy calls current_setting() or a function of auth for every row, although the value is constant within a statement.",
        remediation: "Write `(select auth.uid())` instead of `auth.uid()`, so that PostgreSQL evaluates it once.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has a row level security policy `%s` that asks for each row what holds for all', n.nspname, c.relname, p.polname),
                 p.polname, null::json
             from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace,
                 regexp_replace(concat(pg_get_expr(p.polqual, c.oid), ' ', pg_get_expr(p.polwithcheck, c.oid)),
                     -- What stands in a select of its own is asked once.
                     '\\( SELECT (auth\\.(uid|jwt|role|email)\\(\\)|current_setting\\()', '', 'g') as rest
             where rest ~ '\\m(auth\\.(uid|jwt|role|email)\\(\\)|current_setting\\()' and ",
            customers!()
        ),
    },
];
