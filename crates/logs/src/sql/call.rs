//! Calls of functions.

use std::fmt::Write as _;

use super::{
    Class, Function, Piece, Result, Type, Write, Writer,
    function::Gives,
    quoted, refused,
    scope::{Meaning, Scope},
    short,
};
use crate::engine::sqlparser::ast::{
    DuplicateTreatment, Expr, Function as Parsed, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, NullTreatment, OrderByExpr, Value, WindowType,
};

/// A call, its arguments not yet written.
pub(crate) struct Call<'a> {
    pub(crate) name: &'a str,
    pub(crate) args: Vec<&'a Expr>,
    parameters: Vec<&'a Expr>,
    distinct: bool,
    /// `COUNT(*)`.
    star: bool,
    order: &'a [OrderByExpr],
    /// Which rows an aggregate is over.
    rows: String,
}

impl<'a> Writer<'a> {
    pub(super) fn call(&mut self, parsed: &'a Parsed, scope: &mut Scope<'a>) -> Result<Piece> {
        let table = self.dialect.table();
        let spelled = parsed.name.to_string();
        let find = |name: &str| table.iter().find(|it| it.name.eq_ignore_ascii_case(name));
        let base = spelled
            .len()
            .checked_sub(2)
            .filter(|at| spelled.is_char_boundary(*at) && &spelled[*at..] == "If");
        let base = base
            .filter(|_| self.clickhouse())
            .and_then(|at| find(&spelled[..at]))
            .filter(|it| it.class == Class::Aggregate);
        let (function, conditional) = match (find(&spelled), base) {
            (Some(function), _) => (function, false),
            (None, Some(function)) => (function, true),
            (None, None) => return refused(format!("Restricted function {}", short(&spelled))),
        };
        let mut call = arguments(function.name, parsed)?;
        self.rows(function, parsed, conditional, &mut call, scope)?;
        let (least, most) = function.takes;
        let count = call.args.len();
        if !(least..=most).contains(&count) && !call.star {
            return refused(format!(
                "Function {} does not take {count} arguments",
                function.name
            ));
        }
        match function.write {
            Write::By(write) => write(self, &call, scope),
            Write::As(template) => {
                let (sql, types) = self.fill(template, &call, scope)?;
                let is = match function.gives {
                    Gives::Is(is) => is,
                    Gives::As(at) => types.get(at).copied().flatten().unwrap_or(Type::Unknown),
                };
                Ok(Piece::new(sql, is))
            }
        }
    }

    /// `FILTER` and `OVER` of a call.
    fn rows(
        &mut self,
        function: &Function,
        parsed: &'a Parsed,
        conditional: bool,
        call: &mut Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        let plain = parsed.over.is_none()
            && !conditional
            && !call.distinct
            && call.order.is_empty()
            && !call.star;
        if function.class == Class::Scalar && !plain {
            return refused(format!("Function {} is no aggregate", function.name));
        }
        if conditional {
            let Some(condition) = call.args.pop() else {
                return refused(format!("Function {}If takes a condition", function.name));
            };
            call.rows = format!(
                " FILTER (WHERE {})",
                self.expression(condition, scope)?.condition()
            );
        }
        match &parsed.over {
            None if function.class == Class::Window => {
                refused(format!("Function {} takes OVER", function.name))
            }
            None => Ok(()),
            Some(WindowType::WindowSpec(spec))
                if spec.window_name.is_none() && spec.window_frame.is_none() =>
            {
                let by = spec
                    .partition_by
                    .iter()
                    .map(|it| Ok(self.expression(it, scope)?.sql))
                    .collect::<Result<Vec<_>>>()?
                    .join(", ");
                let by = if by.is_empty() {
                    by
                } else {
                    format!("PARTITION BY {by}")
                };
                let order = self.order_within(&spec.order_by, scope)?;
                let _ = write!(call.rows, " OVER ({by}{order})");
                Ok(())
            }
            Some(_) => refused("A window has no frame and no name"),
        }
    }

    /// Writes what a template says.
    fn fill(
        &mut self,
        template: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<(String, Vec<Option<Type>>)> {
        let mut types = vec![None; call.args.len()];
        let mut sql = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            sql.push_str(before);
            let Some((place, after)) = after.split_once('}') else {
                return refused("Backend error");
            };
            rest = after;
            match place {
                "f" => sql.push_str(&call.rows),
                "d" => sql.push_str(if call.distinct { "DISTINCT " } else { "" }),
                "p" => sql.push_str(&Self::parameter(call)?),
                "o" => sql.push_str(&self.order_within(call.order, scope)?),
                place => {
                    let (which, form) = place.split_once(':').unwrap_or((place, ""));
                    let all = 0..call.args.len();
                    let which = which.parse().map_or(all, |at: usize| at..at + 1);
                    for (count, at) in which.enumerate() {
                        sql.push_str(if count == 0 { "" } else { ", " });
                        let (written, is) = self.argument(call, at, form, scope)?;
                        sql.push_str(&written);
                        types[at] = types[at].or(is);
                    }
                }
            }
        }
        sql.push_str(rest);
        Ok((Self::bounded(sql)?, types))
    }

    fn argument(
        &mut self,
        call: &Call<'a>,
        at: usize,
        form: &str,
        scope: &mut Scope<'a>,
    ) -> Result<(String, Option<Type>)> {
        let Some(arg) = call.args.get(at) else {
            return refused(format!("Function {} takes more arguments", call.name));
        };
        match form {
            "u" => return Ok((quoted(unit(arg)?), None)),
            "l" => return Ok((quoted(&self.literal(call, at, scope)?), None)),
            _ => {}
        }
        let piece = self.expression(arg, scope)?;
        let written = match form {
            "t" => piece.text(),
            "i" => piece.integer(),
            "f" => piece.float(),
            "n" => piece.numeric(),
            "b" => piece.condition(),
            "m" => piece.moment(self.dialect),
            _ => piece.sql,
        };
        Ok((written, Some(piece.is)))
    }

    /// The text of a literal argument.
    pub(crate) fn literal(
        &mut self,
        call: &Call<'a>,
        at: usize,
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let literal = match call.args.get(at) {
            Some(arg) => self.expression(arg, scope)?.literal,
            None => None,
        };
        literal.map_or_else(
            || {
                refused(format!(
                    "Argument {} of function {} is a literal",
                    at + 1,
                    call.name
                ))
            },
            Ok,
        )
    }

    /// The parameter of a quantile.
    fn parameter(call: &Call<'a>) -> Result<String> {
        let Some(Expr::Value(value)) = call.parameters.first() else {
            return if call.parameters.is_empty() {
                Ok("0.5".into())
            } else {
                refused("A parameter is a number")
            };
        };
        fraction(&value.value)
    }

    // What templates cannot say.

    /// `COUNT`, of rows or of values.
    pub(crate) fn count(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let what = match call.args.first() {
            Some(arg) => self.expression(arg, scope)?.sql,
            None => "*".to_owned(),
        };
        let distinct = if call.distinct { "DISTINCT " } else { "" };
        Ok(Piece::new(
            format!("count({distinct}{what}){}", call.rows),
            Type::Integer,
        ))
    }

    /// Conditions and what they give, in turns, and what is given otherwise.
    pub(crate) fn multi_if(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        if call.args.len().is_multiple_of(2) {
            return refused(format!(
                "Function {} takes an odd number of arguments",
                call.name
            ));
        }
        let (mut sql, mut types) = (String::from("CASE"), Vec::new());
        for pair in call.args.chunks(2) {
            match pair {
                [condition, value] => {
                    let value = self.expression(value, scope)?;
                    let condition = self.expression(condition, scope)?.condition();
                    let _ = write!(sql, " WHEN {condition} THEN {}", value.sql);
                    types.push(value.is);
                }
                otherwise => {
                    for value in otherwise {
                        let value = self.expression(value, scope)?;
                        let _ = write!(sql, " ELSE {}", value.sql);
                        types.push(value.is);
                    }
                }
            }
        }
        Ok(Piece::new(
            Self::bounded(format!("{sql} END"))?,
            common(&types),
        ))
    }

    /// The list of quantiles at the parameters.
    pub(crate) fn quantiles(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let (value, _) = self.argument(call, 0, "f", scope)?;
        let each = call.parameters.iter().map(|parameter| match parameter {
            Expr::Value(at) => Ok(format!(
                "approx_percentile_cont({value}, {}){}",
                fraction(&at.value)?,
                call.rows
            )),
            _ => refused("A parameter is a number"),
        });
        let each = each.collect::<Result<Vec<_>>>()?.join(", ");
        Ok(Piece::new(
            Self::bounded(format!("make_array({each})"))?,
            Type::List,
        ))
    }

    /// A row for each item of a list.
    pub(crate) fn unfold(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let (list, _) = self.argument(call, 0, "", scope)?;
        let [table] = scope.tables.as_slice() else {
            return refused("Function arrayJoin takes one table");
        };
        let table = table.written.clone();
        let known = scope
            .unfolded
            .iter()
            .find(|(it, _)| *it == list)
            .map(|(_, called)| called.clone());
        let called = known.unwrap_or_else(|| {
            let called = self.fresh();
            scope.unfolded.push((list, called.clone()));
            called
        });
        Ok(Piece::new(format!("{table}.{called}"), Type::Text))
    }

    /// A number with so many digits behind its point.
    pub(crate) fn round(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let (number, _) = self.argument(call, 0, "f", scope)?;
        let digits = if call.args.len() == 1 {
            "0".to_owned()
        } else {
            self.argument(call, 1, "i", scope)?.0
        };
        Ok(Piece::new(
            format!("round({number}, {digits})"),
            Type::Float,
        ))
    }

    /// Whether a key is among the attributes.
    pub(crate) fn has_key(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let (map, _) = self.argument(call, 0, "", scope)?;
        let (key, _) = self.argument(call, 1, "t", scope)?;
        Ok(Piece::new(
            format!("array_has(map_keys({map}), {key})"),
            Type::Boolean,
        ))
    }

    /// How many units lie between two moments. With boundaries, how often a new one began.
    pub(crate) fn between(
        &mut self,
        unit_at: usize,
        moments: (usize, usize),
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        let Some(arg) = call.args.get(unit_at) else {
            return refused("A unit is missing");
        };
        let unit = unit(arg)?;
        let (from, _) = self.argument(call, moments.0, "m", scope)?;
        let (to, _) = self.argument(call, moments.1, "m", scope)?;
        let micros: i64 = match unit {
            "microsecond" => 1,
            "millisecond" => 1_000,
            "second" => 1_000_000,
            "minute" => 60_000_000,
            "hour" => 3_600_000_000,
            "day" => 86_400_000_000,
            "week" => 604_800_000_000,
            _ => return refused("Differences are taken in weeks or less"),
        };
        let at = |moment: String| {
            let moment = if self.clickhouse() {
                format!("date_trunc('{unit}', {moment})")
            } else {
                moment
            };
            format!("CAST(arrow_cast({moment}, 'Timestamp(Microsecond, None)') AS BIGINT)")
        };
        Ok(Piece::new(
            format!("(({} - {}) / {micros})", at(to), at(from)),
            Type::Integer,
        ))
    }

    /// The present.
    pub(crate) fn present(&self, unit: Type) -> Piece {
        match unit {
            Type::Second => Piece::new(
                format!(
                    "arrow_cast({}, 'Timestamp(Second, None)')",
                    self.now.div_euclid(1_000_000)
                ),
                unit,
            ),
            Type::Date => Piece::new(
                format!(
                    "CAST(arrow_cast({}, 'Timestamp(Microsecond, None)') AS DATE)",
                    self.now
                ),
                unit,
            ),
            _ => Piece::new(
                format!("arrow_cast({}, 'Timestamp(Microsecond, None)')", self.now),
                Type::Moment,
            ),
        }
    }

    /// A moment as text, by a format of the C library.
    pub(crate) fn formatted(
        &mut self,
        moment: usize,
        format: usize,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        let format = self.literal(call, format, scope)?;
        let mut written = String::new();
        let mut rest = format.chars();
        while let Some(it) = rest.next() {
            written.push(it);
            if it != '%' {
                continue;
            }
            match rest.next() {
                Some('i') if self.clickhouse() => written.push('M'),
                Some(
                    it @ ('Y' | 'm' | 'd' | 'H' | 'M' | 'S' | 'j' | 'y' | 'F' | 'T' | 'u' | 'w'
                    | 'a' | 'A' | 'b' | 'B' | 'e' | 'I' | 'p' | '%'),
                ) => {
                    written.push(it);
                }
                _ => return refused("This format of moments is not supported"),
            }
        }
        let (moment, _) = self.argument(call, moment, "m", scope)?;
        Ok(Piece::new(
            format!("to_char({moment}, {})", quoted(&written)),
            Type::Text,
        ))
    }

    /// `toInt32(…)` and its like: a moment in seconds, a text as what it says.
    pub(crate) fn json_path(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<Piece> {
        let (text, _) = self.argument(call, 0, "t", scope)?;
        let path = if call.args.len() > 1 {
            self.literal(call, 1, scope)?
        } else {
            "$".into()
        };
        let keys: Vec<_> = path
            .trim_start_matches('$')
            .split(['.', '[', ']', '\'', '"'])
            .filter(|it| !it.is_empty())
            .map(quoted)
            .collect();
        let keys = [vec![String::new()], keys].concat().join(", ");
        Ok(Piece::new(format!("json_text({text}{keys})"), Type::Text))
    }

    /// `log_attributes['key']` and items of lists.
    pub(super) fn subscript(
        &mut self,
        root: &'a Expr,
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        if let (Expr::Identifier(_) | Expr::CompoundIdentifier(_), true) = (root, self.clickhouse())
        {
            let idents = match root {
                Expr::Identifier(ident) => std::slice::from_ref(ident),
                Expr::CompoundIdentifier(idents) => idents,
                _ => &[],
            };
            if let Meaning::Record { table, path } = self.meaning(idents, scope)?
                && path.is_empty()
            {
                return match self.expression(index, scope)?.literal {
                    Some(key) => Ok(Self::attribute(table, &key, scope)),
                    None => refused("A key of log_attributes is a literal text"),
                };
            }
        }
        if let (Expr::Function(function), false) = (root, self.clickhouse())
            && function
                .name
                .to_string()
                .eq_ignore_ascii_case("approx_quantiles")
        {
            return self.approx_quantile(function, index, scope);
        }
        let list = self.expression(root, scope)?;
        if list.is != Type::List {
            return refused(format!("{} is no list", short(&root.to_string())));
        }
        let at = match index {
            Expr::Function(function) => {
                let call = arguments("offset", function)?;
                let Some(at) = call.args.first() else {
                    return refused("OFFSET takes a number");
                };
                let at = self.expression(at, scope)?.integer();
                match function.name.to_string().to_ascii_lowercase().as_str() {
                    "offset" | "safe_offset" => format!("({at} + 1)"),
                    "ordinal" | "safe_ordinal" => at,
                    _ => return refused("A list takes OFFSET or ORDINAL"),
                }
            }
            index => self.expression(index, scope)?.integer(),
        };
        Ok(Piece::new(
            format!("array_element({}, {at})", list.sql),
            Type::Text,
        ))
    }

    /// `APPROX_QUANTILES(x, n)[OFFSET(k)]`: the quantile at k of n.
    fn approx_quantile(
        &mut self,
        function: &'a Parsed,
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<Piece> {
        let number = |expr: &Expr| match expr {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) => digits.parse::<u32>().ok(),
                _ => None,
            },
            _ => None,
        };
        let call = arguments("approx_quantiles", function)?;
        let Expr::Function(offset) = index else {
            return refused("APPROX_QUANTILES takes OFFSET");
        };
        let offset = arguments("offset", offset)?;
        let (Some(parts), Some(at)) = (
            call.args.get(1).and_then(|it| number(it)),
            offset.args.first().and_then(|it| number(it)),
        ) else {
            return refused("APPROX_QUANTILES takes whole numbers");
        };
        if at > parts || parts == 0 {
            return refused("APPROX_QUANTILES has no such quantile");
        }
        let (value, _) = self.argument(&call, 0, "f", scope)?;
        Ok(Piece::new(
            format!(
                "approx_percentile_cont({value}, {:?})",
                f64::from(at) / f64::from(parts)
            ),
            Type::Float,
        ))
    }
}

/// What several values are together.
pub(super) fn common(types: &[Type]) -> Type {
    let mut known = types.iter().copied().filter(|it| *it != Type::Unknown);
    let first = known.next().unwrap_or(Type::Unknown);
    known.fold(first, |one, other| match (one, other) {
        (one, other) if one == other => one,
        (one, other) if one.is_number() && other.is_number() => Type::Float,
        _ => Type::Unknown,
    })
}

fn fraction(value: &Value) -> Result<String> {
    match value {
        Value::Number(digits, _) => match digits.parse::<f64>() {
            Ok(it) if (0.0..=1.0).contains(&it) => Ok(format!("{it:?}")),
            _ => refused("A quantile lies between 0 and 1"),
        },
        _ => refused("A quantile is a number"),
    }
}

/// A unit of time, as a word or as a text.
pub(crate) fn unit(expr: &Expr) -> Result<&'static str> {
    let text = match expr {
        Expr::Identifier(ident) => ident.value.as_str(),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text,
            _ => "",
        },
        _ => "",
    };
    unit_of(text)
}

pub(crate) fn unit_of(text: &str) -> Result<&'static str> {
    const UNITS: [&str; 9] = [
        "microsecond",
        "millisecond",
        "second",
        "minute",
        "hour",
        "day",
        "week",
        "month",
        "year",
    ];
    let lower = text.to_ascii_lowercase();
    let one = lower.strip_suffix('s').unwrap_or(&lower);
    let one = if one == "isoweek" { "week" } else { one };
    let known = UNITS
        .into_iter()
        .chain(["quarter"])
        .find(|unit| *unit == one);
    known.map_or_else(
        || refused(format!("{} is no unit of time", short(text))),
        Ok,
    )
}

/// The parts of a call that are known; others are refused.
fn arguments<'a>(name: &'static str, parsed: &'a Parsed) -> Result<Call<'a>> {
    let odd = parsed.uses_odbc_syntax || parsed.filter.is_some() || !parsed.within_group.is_empty();
    let mut call = Call {
        name,
        args: Vec::new(),
        parameters: Vec::new(),
        distinct: false,
        star: false,
        order: &[],
        rows: String::new(),
    };
    let ignored = |it: Option<NullTreatment>| it.is_none_or(|it| it == NullTreatment::IgnoreNulls);
    if odd || !ignored(parsed.null_treatment) {
        return refused(format!("This way to call {name} is not supported"));
    }
    match &parsed.parameters {
        FunctionArguments::None => {}
        FunctionArguments::List(list)
            if list.clauses.is_empty() && list.duplicate_treatment.is_none() =>
        {
            for arg in &list.args {
                match arg {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => call.parameters.push(expr),
                    _ => return refused(format!("Function {name} takes expressions")),
                }
            }
        }
        _ => return refused(format!("This way to call {name} is not supported")),
    }
    match &parsed.args {
        FunctionArguments::None => {}
        FunctionArguments::Subquery(_) => {
            return refused(format!("Function {name} takes expressions"));
        }
        FunctionArguments::List(list) => {
            call.distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
            for arg in &list.args {
                match arg {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => call.args.push(expr),
                    FunctionArg::Unnamed(FunctionArgExpr::Wildcard)
                        if name.eq_ignore_ascii_case("count") && list.args.len() == 1 =>
                    {
                        call.star = true;
                    }
                    _ => return refused(format!("Function {name} takes expressions")),
                }
            }
            for clause in &list.clauses {
                match clause {
                    FunctionArgumentClause::OrderBy(order) => call.order = order,
                    FunctionArgumentClause::IgnoreOrRespectNulls(NullTreatment::IgnoreNulls) => {}
                    _ => return refused(format!("This way to call {name} is not supported")),
                }
            }
        }
    }
    Ok(call)
}
