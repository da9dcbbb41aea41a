//! Function calls: lookup, filters and windows, and translation by template.

use std::fmt::Write as _;

use super::{
    function::{FunctionKind, FunctionSpec, ReturnType, Translation},
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::{Result, check_length, excerpt, invalid, quote_literal},
    time::{local_time, time_unit, time_zone},
    translator::Translator,
};
use crate::{
    answer::QueryError,
    engine::sqlparser::ast::{
        DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
        FunctionArgumentList, FunctionArguments, NullTreatment, OrderByExpr, Value, WindowSpec,
        WindowType,
    },
};

/// The flag of patterns in which a dot matches line ends.
const DOT_MATCHES_ALL: &str = "(?s)";

/// A function call with untranslated arguments.
pub(crate) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: Vec<&'a Expr>,
    /// Parameters of a parametric aggregate, such as the level in `quantile(0.9)(x)`.
    pub(super) parameters: Vec<&'a Expr>,
    pub(super) distinct: bool,
    /// Whether the call is `COUNT(*)`.
    star: bool,
    pub(super) order: &'a [OrderByExpr],
    /// The number of values that `LIMIT` in the call keeps.
    pub(super) limit: Option<&'a Expr>,
    /// Whether `IGNORE NULLS` was given.
    pub(super) ignores_nulls: bool,
    /// The time zone of an optional argument, unless it is UTC.
    pub(super) zone: Option<String>,
    /// Translated `FILTER` and `OVER` clauses.
    pub(super) filter_and_window: String,
}

/// A translated argument with its type, unless it is a literal or a time unit.
type Argument = (String, Option<ArgumentType>);

#[derive(Debug, Clone, Copy)]
pub(super) struct ArgumentType {
    pub(super) ty: Type,
    nullable: bool,
}

impl<'a> Translator<'a> {
    pub(super) fn call(
        &mut self,
        function: &'a Function,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let (spec, conditional) = self.find_function(&function.name.to_string())?;
        let mut call = Call::parse(spec.name, function)?;
        self.add_filter_and_window(spec, function, conditional, &mut call, scope)?;
        let (min, max) = spec.arity;
        let count = call.args.len();
        if spec.kind == FunctionKind::Aggregate {
            self.aggregates += 1;
        }
        if let Some(at) = spec.zone_at
            && count == at + 1
        {
            call.zone = time_zone(&self.literal(&call, at, scope)?)?;
            call.args.pop();
        }
        let count = call.args.len();
        if !(min..=max).contains(&count) && !call.star {
            return invalid(format!(
                "Function {} does not take {count} arguments",
                spec.name
            ));
        }
        match spec.translation {
            Translation::Code(translate) => translate(self, &call, scope),
            Translation::Template(template) => {
                let ignores_distinct = call.distinct && !template.contains("{d}");
                let is_extreme = ["min", "max"].contains(&spec.name);
                if (ignores_distinct && !is_extreme) || !call.order.is_empty() {
                    return invalid(format!(
                        "Function {} does not support DISTINCT and ORDER BY",
                        spec.name
                    ));
                }
                let (sql, types) = self.fill_template(template, &call, scope)?;
                Ok(self.typed_result(spec, sql, &types, call.zone.is_some()))
            }
        }
    }

    /// Adds the type to the SQL of a call.
    fn typed_result(
        &self,
        spec: &FunctionSpec,
        sql: String,
        types: &[Option<ArgumentType>],
        zoned: bool,
    ) -> SqlExpr {
        let argument = |at: usize| {
            let ty = types.get(at).copied().flatten();
            ty.map_or(Type::Unknown, |it| it.ty)
        };
        let nullable = types.iter().flatten().any(|it| it.nullable);
        let ty = match spec.returns {
            ReturnType::Always(ty) => ty,
            ReturnType::OfArgument(at) | ReturnType::OrDefault(at) => argument(at),
            ReturnType::ListOf(at) => argument(at).list(),
        };
        let zoned = zoned || types.iter().flatten().any(|it| it.ty == Type::Local);
        let ty = match ty {
            Type::Seconds | Type::Timestamp if zoned => Type::Local,
            ty => ty,
        };
        let default = match spec.returns {
            ReturnType::OrDefault(_) if self.is_clickhouse() && !nullable => ty.default_sql(),
            _ => None,
        };
        let sql = match default {
            Some(default) => format!("coalesce({sql}, {default})"),
            None => sql,
        };
        let keeps_nulls = spec.kind != FunctionKind::Aggregate || default.is_none();
        let makes_nulls = spec.name.ends_with("OrNull") || spec.name.eq_ignore_ascii_case("nullIf");
        let removes_nulls = ["coalesce", "ifNull", "assumeNotNull", "isNull", "isNotNull"]
            .into_iter()
            .any(|name| name.eq_ignore_ascii_case(spec.name));
        let nullable = makes_nulls || (nullable && keeps_nulls && !removes_nulls);
        SqlExpr::new(sql, ty).nullable(nullable)
    }

    /// Finds a function by its name. Returns true with an aggregate that has the `ClickHouse`
    /// suffix `If`.
    fn find_function(&self, name: &str) -> Result<(&'static FunctionSpec, bool)> {
        if let Some(spec) = self.function_named(name) {
            return Ok((spec, false));
        }
        if self.is_clickhouse()
            && let Some(base) = name.strip_suffix("If")
            && let Some(spec) = self.function_named(base)
            && spec.kind == FunctionKind::Aggregate
        {
            return Ok((spec, true));
        }
        invalid(format!("Restricted function {}", excerpt(name)))
    }

    fn function_named(&self, name: &str) -> Option<&'static FunctionSpec> {
        self.functions
            .iter()
            .copied()
            .flatten()
            .find(|spec| spec.name.eq_ignore_ascii_case(name))
    }

    /// Translates the `If` condition and the `OVER` clause of a call.
    fn add_filter_and_window(
        &mut self,
        spec: &FunctionSpec,
        function: &'a Function,
        conditional: bool,
        call: &mut Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let plain = function.over.is_none()
            && !conditional
            && !call.distinct
            && call.order.is_empty()
            && !call.star;
        let keeps_limit = spec.name == "array_agg" || spec.name == "string_agg";
        if call.limit.is_some() && !keeps_limit {
            return invalid(format!("Function {} does not support LIMIT", spec.name));
        }
        if spec.kind == FunctionKind::Scalar && !plain {
            return invalid(format!("Function {} is not an aggregate", spec.name));
        }
        if conditional {
            let Some(condition) = call.args.pop() else {
                return invalid(format!("Function {}If takes a condition", spec.name));
            };
            let condition = self.expression(condition, scope)?.condition();
            call.filter_and_window = format!(" FILTER (WHERE {condition})");
        }
        let is_list = matches!(
            spec.returns,
            ReturnType::ListOf(_) | ReturnType::Always(Type::List(_))
        );
        if is_list && function.over.is_some() {
            return invalid(format!("Function {} does not support OVER", spec.name));
        }
        match &function.over {
            None if spec.kind == FunctionKind::Window => {
                invalid(format!("Function {} requires OVER", spec.name))
            }
            None => Ok(()),
            Some(WindowType::WindowSpec(window))
                if window.window_name.is_none() && window.window_frame.is_none() =>
            {
                let over = self.window(window, scope)?;
                call.filter_and_window.push_str(&over);
                Ok(())
            }
            Some(_) => invalid("Window names and window frames are not supported"),
        }
    }

    fn window(&mut self, window: &'a WindowSpec, scope: &mut Scope<'a>) -> Result<String> {
        let mut keys = Vec::with_capacity(window.partition_by.len());
        for key in &window.partition_by {
            keys.push(self.expression(key, scope)?.sql);
        }
        let partition = if keys.is_empty() {
            String::new()
        } else {
            format!("PARTITION BY {}", keys.join(", "))
        };
        let order = self.order_by_expressions(&window.order_by, scope)?;
        Ok(format!(" OVER ({partition}{order})"))
    }

    /// Fills the placeholders of a template. Returns the SQL and the types of the used arguments.
    fn fill_template(
        &mut self,
        template: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<(String, Vec<Option<ArgumentType>>)> {
        let mut types = vec![None; call.args.len()];
        let mut sql = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((placeholder, after)) = after.split_once('}') else {
                return Err(QueryError::Backend(format!(
                    "malformed template: {template}"
                )));
            };
            sql.push_str(before);
            rest = after;
            match placeholder {
                "f" => sql.push_str(&call.filter_and_window),
                "d" => sql.push_str(call.distinct_keyword()),
                "n" => sql.push_str(&call.count_parameter()?),
                "p" => sql.push_str(&call.quantile_parameter()?),
                argument => self.fill_argument(argument, call, scope, &mut sql, &mut types)?,
            }
        }
        sql.push_str(rest);
        Ok((check_length(sql)?, types))
    }

    /// Fills a placeholder for one argument or, with `*`, for all arguments.
    fn fill_argument(
        &mut self,
        placeholder: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
        sql: &mut String,
        types: &mut [Option<ArgumentType>],
    ) -> Result<()> {
        let (index, form) = placeholder.split_once(':').unwrap_or((placeholder, ""));
        let indices = match index.parse::<usize>() {
            Ok(at) => at..at + 1,
            Err(_) => 0..call.args.len(),
        };
        for (count, at) in indices.enumerate() {
            let separator = if count == 0 { "" } else { ", " };
            let (argument, ty) = self.argument(call, at, form, scope)?;
            let _ = write!(sql, "{separator}{argument}");
            types[at] = types[at].or(ty);
        }
        Ok(())
    }

    /// Translates an argument in the form that a placeholder requests.
    pub(super) fn argument(
        &mut self,
        call: &Call<'a>,
        at: usize,
        form: &str,
        scope: &mut Scope<'a>,
    ) -> Result<Argument> {
        let Some(arg) = call.args.get(at) else {
            return invalid(format!("Function {} takes more arguments", call.name));
        };
        match form {
            "u" => return Ok((quote_literal(time_unit(arg)?), None)),
            "l" => return Ok((quote_literal(&self.literal(call, at, scope)?), None)),
            // A dot in patterns matches line ends, too.
            "r" => {
                let pattern = format!("{DOT_MATCHES_ALL}{}", self.literal(call, at, scope)?);
                return Ok((quote_literal(&pattern), None));
            }
            _ => {}
        }
        let expr = self.expression(arg, scope)?;
        let sql = match form {
            "t" => expr.text(),
            "i" => expr.integer(),
            "f" => expr.float(),
            "n" => expr.numeric(),
            "b" => expr.condition(),
            "m" => match &call.zone {
                // A text is a date and time in the zone.
                Some(zone) if expr.ty != Type::Text => {
                    if expr.ty == Type::Local {
                        return invalid("A time in a time zone is not converted to another one");
                    }
                    local_time(&expr.timestamp(self.dialect), zone)
                }
                _ => expr.timestamp(self.dialect),
            },
            "M" if expr.ty == Type::Local => {
                return invalid(format!(
                    "Function {} does not support a time zone",
                    call.name
                ));
            }
            "M" => expr.timestamp(self.dialect),
            _ => expr.sql,
        };
        let ty = ArgumentType {
            ty: expr.ty,
            nullable: expr.nullable,
        };
        Ok((sql, Some(ty)))
    }

    /// Returns the text of a literal argument.
    pub(super) fn literal(
        &mut self,
        call: &Call<'a>,
        at: usize,
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let literal = match call.args.get(at) {
            Some(arg) => self.expression(arg, scope)?.literal,
            None => None,
        };
        match literal {
            Some(text) => Ok(text),
            None => invalid(format!(
                "Argument {} of function {} must be a literal",
                at + 1,
                call.name
            )),
        }
    }
}

impl<'a> Call<'a> {
    /// Reads the parts of a call. Unsupported clauses are rejected.
    pub(super) fn parse(name: &'static str, function: &'a Function) -> Result<Self> {
        let respects_nulls = function.null_treatment == Some(NullTreatment::RespectNulls);
        if function.uses_odbc_syntax
            || function.filter.is_some()
            || !function.within_group.is_empty()
            || respects_nulls
        {
            return unsupported_call(name);
        }
        let mut call = Call {
            name,
            args: Vec::new(),
            parameters: Vec::new(),
            distinct: false,
            star: false,
            order: &[],
            limit: None,
            ignores_nulls: false,
            zone: None,
            filter_and_window: String::new(),
        };
        call.parse_parameters(&function.parameters)?;
        match &function.args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(_) => return expressions_only(name),
            FunctionArguments::List(list) => call.parse_arguments(list)?,
        }
        Ok(call)
    }

    fn parse_parameters(&mut self, parameters: &'a FunctionArguments) -> Result<()> {
        let list = match parameters {
            FunctionArguments::None => return Ok(()),
            FunctionArguments::List(list)
                if list.clauses.is_empty() && list.duplicate_treatment.is_none() =>
            {
                list
            }
            _ => return unsupported_call(self.name),
        };
        for arg in &list.args {
            match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.parameters.push(expr),
                _ => return expressions_only(self.name),
            }
        }
        Ok(())
    }

    fn parse_arguments(&mut self, list: &'a FunctionArgumentList) -> Result<()> {
        self.distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
        for arg in &list.args {
            match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.args.push(expr),
                FunctionArg::Unnamed(FunctionArgExpr::Wildcard)
                    if self.name.eq_ignore_ascii_case("count") && list.args.len() == 1 =>
                {
                    self.star = true;
                }
                _ => return expressions_only(self.name),
            }
        }
        for clause in &list.clauses {
            match clause {
                FunctionArgumentClause::OrderBy(order) => self.order = order,
                FunctionArgumentClause::Limit(limit) => self.limit = Some(limit),
                FunctionArgumentClause::IgnoreOrRespectNulls(NullTreatment::IgnoreNulls) => {
                    self.ignores_nulls = true;
                }
                FunctionArgumentClause::IgnoreOrRespectNulls(NullTreatment::RespectNulls) => {}
                _ => return unsupported_call(self.name),
            }
        }
        Ok(())
    }

    pub(super) fn distinct_keyword(&self) -> &'static str {
        if self.distinct { "DISTINCT " } else { "" }
    }

    /// Returns the number in the parameter of an aggregate such as `groupArray(n)`, 0 without one.
    pub(super) fn count_parameter(&self) -> Result<String> {
        let Some(parameter) = self.parameters.first() else {
            return Ok("0".into());
        };
        let count = whole_number(parameter).filter(|count| *count > 0);
        match count {
            Some(count) => Ok(count.to_string()),
            None => invalid("A parameter must be a positive number"),
        }
    }

    /// Returns the level of a quantile, by default the median.
    fn quantile_parameter(&self) -> Result<String> {
        match self.parameters.first() {
            None => Ok("0.5".into()),
            Some(parameter) => quantile_level(parameter),
        }
    }
}

/// Formats the level of a quantile, a number between 0 and 1.
pub(super) fn quantile_level(parameter: &Expr) -> Result<String> {
    let Expr::Value(value) = parameter else {
        return invalid("A parameter must be a number");
    };
    let Value::Number(digits, _) = &value.value else {
        return invalid("A quantile level must be a number");
    };
    match digits.parse::<f64>() {
        Ok(level) if (0.0..=1.0).contains(&level) => Ok(format!("{level:?}")),
        _ => invalid("A quantile level must be between 0 and 1"),
    }
}

/// Returns the value of a literal without a sign and a fraction.
pub(super) fn whole_number(expr: &Expr) -> Option<u32> {
    let Expr::Value(value) = expr else {
        return None;
    };
    match &value.value {
        Value::Number(digits, _) => digits.parse().ok(),
        _ => None,
    }
}

fn unsupported_call<T>(name: &str) -> Result<T> {
    invalid(format!("This way to call {name} is not supported"))
}

fn expressions_only<T>(name: &str) -> Result<T> {
    invalid(format!("Function {name} takes expressions"))
}
