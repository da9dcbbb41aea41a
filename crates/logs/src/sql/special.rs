//! Functions that templates cannot express.

use std::fmt::Write as _;

use super::{
    call::{Call, quantile_level, whole_number},
    lambda::list_length,
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    subscript::tuple_element,
    text::{Result, check_length, invalid, quote_literal},
    translator::Translator,
};

/// Maximum number of quantiles in one call.
const QUANTILES_MAX: u32 = 1_000;

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
        let mut nullable = false;
        for [condition, value] in pairs {
            let value = self.expression(value, scope)?;
            let condition = self.expression(condition, scope)?.condition();
            let _ = write!(sql, " WHEN {condition} THEN {}", value.sql);
            types.push(value.ty);
            nullable |= value.nullable;
        }
        let default = self.expression(default, scope)?;
        nullable |= default.nullable;
        types.push(default.ty);
        let sql = check_length(format!("{sql} ELSE {} END", default.sql))?;
        Ok(SqlExpr::new(sql, Type::common(&types)).nullable(nullable))
    }

    /// `quantiles(level, …)(value)`: the list of quantiles.
    pub(crate) fn quantiles(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (value, _) = self.argument(call, 0, "f", scope)?;
        let mut levels = String::new();
        for parameter in &call.parameters {
            let _ = write!(levels, ", {}", quantile_level(parameter)?);
        }
        if levels.is_empty() {
            levels.push_str(", 0.5");
        }
        let filter = &call.filter_and_window;
        let sql = check_length(format!("quantiles_between({value}{levels}){filter}"))?;
        Ok(SqlExpr::new(sql, Type::FLOATS))
    }

    /// `quantileExact(level)(value)` in the type of the value.
    pub(crate) fn quantile_exact(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.only_argument(call, scope)?;
        let level = match call.parameters.first() {
            Some(parameter) => quantile_level(parameter)?,
            None => "0.5".to_owned(),
        };
        let filter = &call.filter_and_window;
        let sql = format!(
            "array_element(quantiles_exact({}, {level}){filter}, 1)",
            value.float()
        );
        if value.ty == Type::Integer && !value.nullable {
            let sql = format!("coalesce(CAST({sql} AS BIGINT), 0)");
            return Ok(SqlExpr::new(sql, Type::Integer));
        }
        Ok(SqlExpr::new(sql, Type::Float))
    }

    /// `APPROX_QUANTILES(value, count)`: the list of `count + 1` quantiles.
    pub(crate) fn approx_quantiles(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let count = call.args.get(1).and_then(|count| whole_number(count));
        match count {
            Some(count @ 1..=QUANTILES_MAX) => {
                let levels: Vec<_> = (0..=count).map(|at| (at, count)).collect();
                self.quantiles_above(call, &levels, scope)
            }
            _ => invalid(format!(
                "APPROX_QUANTILES takes a number of quantiles up to {QUANTILES_MAX}"
            )),
        }
    }

    /// The list of quantiles at fractions, in the type of the value.
    pub(super) fn quantiles_above(
        &mut self,
        call: &Call<'a>,
        fractions: &[(u32, u32)],
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        self.aggregates += 1;
        let Some(value) = call.args.first() else {
            return invalid("APPROX_QUANTILES takes a value");
        };
        let value = self.expression(value, scope)?;
        let mut levels = String::new();
        for (at, count) in fractions {
            let _ = write!(levels, ", {:?}", f64::from(*at) / f64::from(*count));
        }
        let distinct = call.distinct_keyword();
        let list = format!("quantiles_above({distinct}{}{levels})", value.float());
        if value.ty == Type::Integer {
            let sql = format!("arrow_cast({list}, 'List(Int64)')");
            return Ok(SqlExpr::new(sql, Type::Integer.list()));
        }
        Ok(SqlExpr::new(list, Type::FLOATS))
    }

    /// `topK(count)(value)`: the most frequent values, 10 by default.
    pub(crate) fn top_values(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let value = self.only_argument(call, scope)?;
        let count = if call.parameters.is_empty() {
            "10".to_owned()
        } else {
            call.count_parameter()?
        };
        let filter = &call.filter_and_window;
        let sql = format!("collect_top({}, {count}, TRUE){filter}", value.sql);
        Ok(SqlExpr::new(sql, value.ty.list()))
    }

    /// `ARRAY_AGG(value ORDER BY key LIMIT count)`.
    pub(crate) fn array_agg(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let Some(value) = call.args.first() else {
            return invalid(format!("Function {} takes a value", call.name));
        };
        let value = self.expression(value, scope)?;
        let sql = self.collected(&value.sql, call.ignores_nulls, call, scope)?;
        Ok(SqlExpr::new(sql, value.ty.list()))
    }

    /// `STRING_AGG(value, separator ORDER BY key LIMIT count)`.
    pub(crate) fn string_agg(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let (value, _) = self.argument(call, 0, "t", scope)?;
        let separator = match call.args.get(1) {
            Some(_) => self.literal(call, 1, scope)?,
            None => ",".to_owned(),
        };
        let list = self.collected(&value, true, call, scope)?;
        let separator = quote_literal(&separator);
        // Nothing to join is null, not the empty text.
        let sql = format!(
            "CASE WHEN array_length({list}) > 0 THEN array_to_string({list}, {separator}) END"
        );
        Ok(SqlExpr::new(check_length(sql)?, Type::Text))
    }

    /// The list of the values of a group, in an order and up to a number if the call has them.
    fn collected(
        &mut self,
        value: &str,
        skips_nulls: bool,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let limit = match call.limit {
            None => 0,
            Some(limit) => match whole_number(limit) {
                Some(limit @ 1..) => limit,
                _ => return invalid("LIMIT takes a positive number"),
            },
        };
        if !call.filter_and_window.is_empty() {
            return invalid(format!("Function {} does not support OVER", call.name));
        }
        let function = if call.distinct {
            "collect_distinct"
        } else {
            "collect_values"
        };
        if call.order.is_empty() {
            return Ok(format!("{function}({value}, {limit}, {skips_nulls})"));
        }
        let mut directions = String::new();
        let mut keys = String::new();
        for item in call.order {
            let ascending = item.options.asc.unwrap_or(true);
            let nulls_first = item.options.nulls_first.unwrap_or(ascending);
            directions.push(match (ascending, nulls_first) {
                (true, true) => 'a',
                (true, false) => 'A',
                (false, true) => 'd',
                (false, false) => 'D',
            });
            let _ = write!(keys, ", {}", self.expression(&item.expr, scope)?.sql);
        }
        if call.distinct {
            // The order of distinct values can only be their own.
            if keys != format!(", {value}") || limit > 0 {
                return invalid("DISTINCT values can only be sorted by themselves");
            }
            let direction = if directions.eq_ignore_ascii_case("a") {
                "ASC"
            } else {
                "DESC"
            };
            return Ok(format!(
                "array_sort({function}({value}, 0, {skips_nulls}), '{direction}')"
            ));
        }
        check_length(format!(
            "collect_sorted({value}, {limit}, {skips_nulls}, '{directions}'{keys})"
        ))
    }

    fn only_argument(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        match call.args.as_slice() {
            [argument] => self.expression(argument, scope),
            _ => invalid(format!("Function {} takes one argument", call.name)),
        }
    }

    /// The length of a text in the unit of an engine function, or of a list.
    pub(crate) fn length(
        &mut self,
        text_length: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.only_argument(call, scope)?;
        if let Type::List(_) = value.ty {
            return Ok(list_length(&value.sql).nullable(value.nullable));
        }
        if value.ty == Type::Map {
            return Ok(list_length(&format!("map_keys({})", value.sql)));
        }
        let sql = format!("CAST({text_length}({}) AS BIGINT)", value.text());
        Ok(SqlExpr::new(sql, Type::Integer).nullable(value.nullable))
    }

    /// `empty` and `notEmpty` of a text, a list or a map.
    pub(crate) fn emptiness(
        &mut self,
        operator: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let value = self.only_argument(call, scope)?;
        let sql = match value.ty {
            Type::List(_) | Type::Map => {
                format!(
                    "({} {operator} 0)",
                    self.length("octet_length", call, scope)?.sql
                )
            }
            _ => format!("({} {operator} '')", value.text()),
        };
        Ok(SqlExpr::new(sql, Type::Boolean).nullable(value.nullable))
    }

    /// `tuple(a, b)`.
    pub(crate) fn tuple_call(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        self.tuple(call.args.iter().copied(), scope)
    }

    /// `tupleElement(tuple, position)`.
    pub(crate) fn tuple_element_call(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let [tuple, position] = call.args.as_slice() else {
            return invalid("Function tupleElement takes a tuple and a position");
        };
        let tuple = self.expression(tuple, scope)?;
        let position = whole_number(position).and_then(|at| usize::try_from(at).ok());
        tuple_element(&tuple, position)
    }

    /// `arrayElement(list, position)`.
    pub(crate) fn array_element(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let [list, position] = call.args.as_slice() else {
            return invalid("Function arrayElement takes an array and a position");
        };
        let list = self.expression(list, scope)?;
        let position = self.expression(position, scope)?.integer();
        match list.ty.item() {
            Some(item) => Ok(self.list_item(&list.sql, item, &position)),
            None => invalid("Function arrayElement takes an array"),
        }
    }

    /// `lagInFrame` and the functions of the SQL standard, with an offset and a default.
    pub(crate) fn neighbour(
        &mut self,
        function: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let Some(value) = call.args.first() else {
            return invalid(format!("Function {} takes a value", call.name));
        };
        let value = self.expression(value, scope)?;
        let offset = match call.args.get(1) {
            None => 1,
            Some(offset) => match whole_number(offset) {
                Some(offset) => offset,
                None => return invalid("The offset must be a whole number"),
            },
        };
        let default = match call.args.get(2) {
            Some(default) => Some(self.expression(default, scope)?.sql),
            None if self.is_clickhouse() && !value.nullable => {
                value.ty.default_sql().map(str::to_owned)
            }
            None => None,
        };
        let default = default.map_or(String::new(), |default| format!(", {default}"));
        let over = &call.filter_and_window;
        let sql = format!("{function}({}, {offset}{default}){over}", value.sql);
        Ok(SqlExpr::new(sql, value.ty).nullable(value.nullable))
    }

    /// `round` with an optional number of decimal places. `ClickHouse` rounds halves of floats to
    /// even digits.
    pub(crate) fn round(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let Some(number) = call.args.first() else {
            return invalid("Function round takes a number");
        };
        let number = self.expression(number, scope)?;
        let places = match call.args.get(1) {
            None => "0".to_owned(),
            Some(places) => self.expression(places, scope)?.integer(),
        };
        let float = number.float();
        let rounded = if number.ty == Type::Integer {
            if !self.is_clickhouse() {
                format!("round({float}, {places})")
            } else if places == "0" {
                return Ok(number);
            } else {
                let sql = format!("CAST(round({float}, least({places}, 0)) AS BIGINT)");
                return Ok(SqlExpr::new(sql, Type::Integer).nullable(number.nullable));
            }
        } else if self.is_clickhouse() {
            format!("round_even({float}, {places})")
        } else {
            format!("round({float}, {places})")
        };
        Ok(SqlExpr::new(rounded, Type::Float).nullable(number.nullable))
    }

    /// `greatest` and `least` of numbers, or of values of one other type. Null if a value is null.
    pub(crate) fn extreme(
        &mut self,
        function: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let mut values = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            values.push(self.expression(arg, scope)?);
        }
        let types: Vec<Type> = values.iter().map(|value| value.ty).collect();
        let ty = Type::common(&types);
        let is_text = types.iter().all(|ty| *ty == Type::Text);
        let nullable = values.iter().any(|value| value.nullable);
        let mut arguments = Vec::with_capacity(values.len());
        for value in &values {
            arguments.push(if is_text || ty.is_time() {
                value.sql.clone()
            } else {
                value.numeric()
            });
        }
        let sql = check_length(format!("{function}({})", arguments.join(", ")))?;
        Ok(SqlExpr::new(sql, ty).nullable(nullable))
    }

    /// `position(text, part, from)` in bytes.
    pub(crate) fn text_position(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let (text, _) = self.argument(call, 0, "t", scope)?;
        let (part, _) = self.argument(call, 1, "t", scope)?;
        let from = match call.args.get(2) {
            Some(_) => format!(", {}", self.argument(call, 2, "i", scope)?.0),
            None => String::new(),
        };
        let sql = format!("byte_position({text}, {part}{from})");
        Ok(SqlExpr::new(sql, Type::Integer))
    }

    /// `arrayStringConcat(list, separator)`.
    pub(crate) fn array_join_texts(
        &mut self,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let (list, _) = self.argument(call, 0, "", scope)?;
        let separator = match call.args.get(1) {
            Some(_) => self.literal(call, 1, scope)?,
            None => String::new(),
        };
        let sql = format!("array_to_string({list}, {})", quote_literal(&separator));
        Ok(SqlExpr::new(sql, Type::Text))
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
}
