//! Lists: functions with lambdas, and `ARRAY JOIN`.

use super::{
    call::Call,
    scope::{ArrayJoin, Scope},
    sql_expr::{SqlExpr, Type},
    text::{Result, check_length, invalid},
    translator::Translator,
};
use crate::engine::sqlparser::ast::{Expr, Query, SelectItem, SetExpr};

/// A translated call with a lambda.
struct LambdaCall {
    list: SqlExpr,
    parameter: String,
    body: SqlExpr,
}

impl<'a> Translator<'a> {
    /// Translates `function(x -> body, list)`.
    fn lambda(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<LambdaCall> {
        let [Expr::Lambda(lambda), list] = call.args.as_slice() else {
            return invalid(format!(
                "Function {} takes a lambda with one parameter and an array",
                call.name
            ));
        };
        let mut parameters = lambda.params.iter();
        let (Some(parameter), None) = (parameters.next(), parameters.next()) else {
            return invalid(format!(
                "Function {} takes a lambda with one parameter and an array",
                call.name
            ));
        };
        let list = self.expression(list, scope)?;
        let Some(item) = list.ty.item() else {
            return invalid(format!("Function {} takes an array", call.name));
        };
        let identifier = self.fresh_identifier();
        let variable = SqlExpr::new(identifier.clone(), item);
        scope.variables.push((&parameter.name.value, variable));
        let body = self.expression(&lambda.body, scope);
        scope.variables.pop();
        Ok(LambdaCall {
            list,
            parameter: identifier,
            body: body?,
        })
    }

    /// `arrayMap(x -> value, list)`.
    pub(crate) fn array_map(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let LambdaCall {
            list,
            parameter,
            body,
        } = self.lambda(call, scope)?;
        let sql = format!("array_transform({}, {parameter} -> {})", list.sql, body.sql);
        Ok(SqlExpr::new(check_length(sql)?, body.ty.list()))
    }

    /// `arrayFilter(x -> condition, list)`.
    pub(crate) fn array_filter(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let LambdaCall {
            list,
            parameter,
            body,
        } = self.lambda(call, scope)?;
        let condition = body.condition();
        let sql = format!("array_filter({}, {parameter} -> {condition})", list.sql);
        Ok(SqlExpr::new(check_length(sql)?, list.ty))
    }

    /// `arrayCount(x -> condition, list)`.
    pub(crate) fn array_count(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let filtered = self.array_filter(call, scope)?;
        Ok(list_length(&filtered.sql))
    }

    /// `arrayExists(x -> condition, list)`.
    pub(crate) fn array_exists(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let count = self.array_count(call, scope)?;
        Ok(SqlExpr::new(format!("({} > 0)", count.sql), Type::Boolean))
    }

    /// `arrayJoin`: one row per item of a list.
    pub(crate) fn array_join(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let Some(list) = call.args.first() else {
            return invalid("Function arrayJoin takes an array");
        };
        let list = self.expression(list, scope)?;
        self.expand_list(&list, None, false, scope)
    }

    /// `ARRAY JOIN list AS name, …`: one row per position of the lists.
    pub(super) fn array_join_clause(
        &mut self,
        lists: &'a Query,
        keeps_empty: bool,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let SetExpr::Select(select) = lists.body.as_ref() else {
            return invalid("ARRAY JOIN takes arrays");
        };
        let mut variables = Vec::with_capacity(select.projection.len());
        let group = scope.array_joins.len();
        for item in &select.projection {
            let (name, expr) = match item {
                SelectItem::ExprWithAlias { expr, alias } => (alias.value.as_str(), expr),
                SelectItem::UnnamedExpr(expr @ Expr::Identifier(ident)) => {
                    (ident.value.as_str(), expr)
                }
                _ => return invalid("The arrays of ARRAY JOIN have names"),
            };
            let list = self.expression(expr, scope)?;
            let item = self.expand_list(&list, Some(group), keeps_empty, scope)?;
            variables.push((name, item));
        }
        scope.variables.extend(variables);
        Ok(())
    }

    /// Expands a list to rows, together with the lists of a group or on its own.
    fn expand_list(
        &mut self,
        list: &SqlExpr,
        group: Option<usize>,
        keeps_empty: bool,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let Some(item) = list.ty.item() else {
            return invalid("ARRAY JOIN and arrayJoin take arrays");
        };
        let [table] = scope.tables.as_slice() else {
            return invalid("ARRAY JOIN and arrayJoin require exactly one table");
        };
        let table = table.identifier.clone();
        let known = scope.array_joins.iter().flatten();
        let known = known
            .filter(|_| group.is_none())
            .find(|it| it.list == list.sql);
        if let Some(known) = known {
            return Ok(SqlExpr::new(format!("{table}.{}", known.identifier), item));
        }
        let identifier = self.fresh_identifier();
        let array_join = ArrayJoin {
            list: list.sql.clone(),
            identifier: identifier.clone(),
            keeps_empty,
        };
        match group.and_then(|group| scope.array_joins.get_mut(group)) {
            Some(group) => group.push(array_join),
            None => scope.array_joins.push(vec![array_join]),
        }
        let sql = format!("{table}.{identifier}");
        let sql = match item.default_sql().filter(|_| keeps_empty) {
            Some(default) => format!("coalesce({sql}, {default})"),
            None => sql,
        };
        Ok(SqlExpr::new(sql, item))
    }
}

/// Returns the number of items of a list.
pub(super) fn list_length(list: &str) -> SqlExpr {
    SqlExpr::new(
        format!("coalesce(CAST(array_length({list}) AS BIGINT), 0)"),
        Type::Integer,
    )
}
