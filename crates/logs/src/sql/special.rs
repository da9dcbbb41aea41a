//! Functions that templates cannot express.

use std::fmt::Write as _;

use super::{
    Result, SqlExpr, Translator, Type,
    call::{Call, quantile_level},
    check_length, invalid, quote_literal,
    scope::{ArrayJoin, Scope},
};

impl<'a> Translator<'a> {
    /// `COUNT` of rows or of values.
    pub(crate) fn count(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let counted = match call.args.first() {
            Some(arg) => self.expression(arg, scope)?.sql,
            None => "*".to_owned(),
        };
        let sql = format!(
            "count({}{counted}){}",
            call.distinct_keyword(),
            call.filter_and_window
        );
        Ok(SqlExpr::new(sql, Type::Integer))
    }

    /// `if` and `multiIf`: pairs of condition and value, followed by the default.
    pub(crate) fn multi_if(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (pairs, rest) = call.args.as_chunks::<2>();
        let [default] = rest else {
            return invalid(format!(
                "Function {} takes an odd number of arguments",
                call.name
            ));
        };
        let mut sql = String::from("CASE");
        let mut types = Vec::new();
        for [condition, value] in pairs {
            let value = self.expression(value, scope)?;
            let condition = self.expression(condition, scope)?.condition();
            let _ = write!(sql, " WHEN {condition} THEN {}", value.sql);
            types.push(value.ty);
        }
        let default = self.expression(default, scope)?;
        types.push(default.ty);
        let sql = check_length(format!("{sql} ELSE {} END", default.sql))?;
        Ok(SqlExpr::new(sql, Type::common(&types)))
    }

    /// `quantiles(level, …)(value)`: the list of quantiles.
    pub(crate) fn quantiles(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (value, _) = self.argument(call, 0, "f", scope)?;
        let mut quantiles = Vec::with_capacity(call.parameters.len());
        for parameter in &call.parameters {
            let level = quantile_level(parameter)?;
            quantiles.push(format!(
                "approx_percentile_cont({value}, {level}){}",
                call.filter_and_window
            ));
        }
        let sql = check_length(format!("make_array({})", quantiles.join(", ")))?;
        Ok(SqlExpr::new(sql, Type::List))
    }

    /// `arrayJoin`: one row per item of a list.
    pub(crate) fn array_join(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (list, _) = self.argument(call, 0, "", scope)?;
        let [table] = scope.tables.as_slice() else {
            return invalid("Function arrayJoin requires exactly one table");
        };
        let table = table.identifier.clone();
        let known = scope.array_joins.iter().find(|it| it.list == list);
        let identifier = if let Some(known) = known {
            known.identifier.clone()
        } else {
            let identifier = self.fresh_identifier();
            scope.array_joins.push(ArrayJoin {
                list,
                identifier: identifier.clone(),
            });
            identifier
        };
        Ok(SqlExpr::new(format!("{table}.{identifier}"), Type::Text))
    }

    /// `round` with an optional number of decimal places.
    pub(crate) fn round(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (number, _) = self.argument(call, 0, "f", scope)?;
        let places = if call.args.len() == 1 {
            "0".to_owned()
        } else {
            self.argument(call, 1, "i", scope)?.0
        };
        Ok(SqlExpr::new(
            format!("round({number}, {places})"),
            Type::Float,
        ))
    }

    /// `mapContains`: whether a map has a key.
    pub(crate) fn map_contains(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let (map, _) = self.argument(call, 0, "", scope)?;
        let (key, _) = self.argument(call, 1, "t", scope)?;
        Ok(SqlExpr::new(
            format!("array_has(map_keys({map}), {key})"),
            Type::Boolean,
        ))
    }

    /// `json_value(text, path)`: the value at a JSON path as text.
    pub(crate) fn json_path(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (mut arguments, _) = self.argument(call, 0, "t", scope)?;
        let path = if call.args.len() > 1 {
            self.literal(call, 1, scope)?
        } else {
            "$".into()
        };
        for key in path
            .trim_start_matches('$')
            .split(['.', '[', ']', '\'', '"'])
            .filter(|key| !key.is_empty())
        {
            let _ = write!(arguments, ", {}", quote_literal(key));
        }
        Ok(SqlExpr::new(format!("json_text({arguments})"), Type::Text))
    }
}
