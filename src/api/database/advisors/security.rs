//! Lints about access control.

use super::{Lint, LintLevel, customers, exposed, no_extensions};

/// Security lints.
pub static LINTS: &[Lint] = &[
    Lint {
        name: "rls_disabled_in_public",
        title: "RLS disabled in public",
        level: LintLevel::Error,
        description: "A table in a schema that the data API serves has no row level security, and roles of the API have privileges on it. Every client with the public key can read or write all rows.",
        remediation: "Run `alter table … enable row level security` and add policies, or revoke the privileges of anon and authenticated.",
        sql: concat!(
            "select n.nspname, c.relname, 'table', format('Table `%I.%I` is public, but RLS has not been enabled', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where c.relkind in ('r', 'p') and not c.relrowsecurity and ",
            exposed!(), " and ", no_extensions!("pg_class", "c.oid")
        ),
    },
    Lint {
        name: "policy_exists_rls_disabled",
        title: "Policy exists, RLS disabled",
        level: LintLevel::Error,
        description: "A table has policies, but row level security is not enabled on it, so the policies have no effect.",
        remediation: "Run `alter table … enable row level security`, or drop the policies.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has policies, but RLS is not enabled: %s', n.nspname, c.relname, string_agg(quote_ident(p.polname), ', ' order by p.polname)),
                 '', null::json
             from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace
             where not c.relrowsecurity and ",
            customers!(), " group by 1, 2"
        ),
    },
    Lint {
        name: "rls_enabled_no_policy",
        title: "RLS enabled, no policy",
        level: LintLevel::Info,
        description: "A table has row level security and no policy. Only its owner, and roles that bypass row level security, see its rows.",
        remediation: "Add a policy with `create policy`, unless this is intended.",
        sql: concat!(
            "select n.nspname, c.relname, 'table', format('Table `%I.%I` has RLS enabled, but no policies exist', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where c.relkind in ('r', 'p') and c.relrowsecurity and not exists (select from pg_policy p where p.polrelid = c.oid) and ",
            customers!()
        ),
    },
    Lint {
        name: "security_definer_view",
        title: "Security definer view",
        level: LintLevel::Error,
        description: "A view that the data API serves reads with the privileges of its owner. Policies of the underlying tables are not applied to the caller.",
        remediation: "Run `alter view … set (security_invoker = true)`.",
        sql: concat!(
            "select n.nspname, c.relname, 'view', format('View `%I.%I` reads with the rights of its owner', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where c.relkind = 'v' and not exists (
                 select from pg_options_to_table(c.reloptions) o where o.option_name = 'security_invoker' and o.option_value::bool) and ",
            exposed!(), " and ", no_extensions!("pg_class", "c.oid")
        ),
    },
    Lint {
        name: "function_search_path_mutable",
        title: "Function search path mutable",
        level: LintLevel::Warn,
        description: "A function resolves names with the search_path of its caller, so a caller can substitute other tables and functions.",
        remediation: "Run `alter function … set search_path = ''` and qualify names with their schema.",
        sql: concat!(
            "select n.nspname, p.proname, 'function', format('Function `%I.%I` has a role mutable search_path', n.nspname, p.proname),
                 md5(pg_get_function_identity_arguments(p.oid)), null::json
             from pg_proc p join pg_namespace n on n.oid = p.pronamespace
             where p.prokind in ('f', 'p') and not exists (select from unnest(p.proconfig) s(setting) where s.setting like 'search_path=%') and ",
            customers!(), " and ", no_extensions!("pg_proc", "p.oid")
        ),
    },
    Lint {
        name: "extension_in_public",
        title: "Extension in public",
        level: LintLevel::Warn,
        description: "An extension is in the schema public, so the data API serves its functions, and its names can conflict with yours.",
        remediation: "Drop it and run `create extension … schema extensions`; save columns of its types before.",
        sql: "select n.nspname, e.extname, 'extension', format('Extension `%I` is installed in the public schema', e.extname), '', null::json
              from pg_extension e join pg_namespace n on n.oid = e.extnamespace where n.nspname = 'public'",
    },
    Lint {
        name: "materialized_view_in_api",
        title: "Materialized view in API",
        level: LintLevel::Warn,
        description: "The data API serves a materialized view. It has no row level security, so a role that can read it sees all rows.",
        remediation: "Revoke the privileges of anon and authenticated on it, or move it to another schema.",
        sql: concat!(
            "select n.nspname, c.relname, 'view', format('Materialized view `%I.%I` can be selected by anon or authenticated', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'm' and ",
            exposed!(), " and ", no_extensions!("pg_class", "c.oid")
        ),
    },
    Lint {
        name: "foreign_table_in_api",
        title: "Foreign table in API",
        level: LintLevel::Warn,
        description: "The data API serves a foreign table. It has no row level security, so a role that can read it sees all rows.",
        remediation: "Revoke the privileges of anon and authenticated on it, or move it to another schema.",
        sql: concat!(
            "select n.nspname, c.relname, 'table', format('Foreign table `%I.%I` is accessible over APIs', n.nspname, c.relname), '', null::json
             from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'f' and ",
            exposed!()
        ),
    },
    Lint {
        name: "auth_users_exposed",
        title: "Exposed auth users",
        level: LintLevel::Error,
        description: "A view that the data API serves reads auth.users: email addresses and metadata of users may be public.",
        remediation: "Drop the view, revoke the privileges of anon and authenticated, or move the public columns to a separate table.",
        sql: concat!(
            "select distinct n.nspname, c.relname, 'view', format('View `%I.%I` may expose `auth.users` to anon or authenticated', n.nspname, c.relname), '', null
             from pg_rewrite r join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
                 join pg_class u on d.refclassid = 'pg_class'::regclass and u.oid = d.refobjid
                 join pg_namespace un on un.oid = u.relnamespace
                 join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
             where un.nspname = 'auth' and u.relname = 'users' and c.relkind in ('v', 'm') and ",
            exposed!()
        ),
    },
    Lint {
        name: "rls_references_user_metadata",
        title: "RLS references user metadata",
        level: LintLevel::Error,
        description: "A policy decides by user_metadata, which users write themselves.",
        remediation: "Decide by app_metadata, or by a table of yours.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has a row level security policy `%s` that references user_metadata', n.nspname, c.relname, p.polname), p.polname, null::json
             from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace
             where concat(pg_get_expr(p.polqual, c.oid), ' ', pg_get_expr(p.polwithcheck, c.oid)) ~ '\\muser_metadata\\M' and ",
            customers!()
        ),
    },
    Lint {
        name: "unsupported_reg_types",
        title: "Unsupported reg types",
        level: LintLevel::Warn,
        description: "A column has a type that stands for an object's identifier. Identifiers change with a major version, so the database cannot be upgraded in place.",
        remediation: "Store the name as text, and cast it where it is used.",
        sql: concat!(
            "select n.nspname, c.relname, 'table',
                 format('Table `%I.%I` has a column `%I` with unsupported reg* type `%s`', n.nspname, c.relname, a.attname, t.typname), a.attname, null::json
             from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace join pg_type t on t.oid = a.atttypid
             where c.relkind in ('r', 'p', 'm') and not a.attisdropped and a.atttypid in ('regcollation'::regtype, 'regconfig'::regtype,
                 'regdictionary'::regtype, 'regnamespace'::regtype, 'regoper'::regtype, 'regoperator'::regtype, 'regproc'::regtype,
                 'regprocedure'::regtype) and ",
            customers!()
        ),
    },
];
