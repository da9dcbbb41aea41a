//! Fields and subscripts: entries of `log_attributes`, items of lists, elements of tuples and
//! records of `metadata`.

use super::{
    call::{Call, whole_number},
    expression::unsupported,
    scope::{Resolution, Scope},
    sql_expr::{SqlExpr, Type},
    text::{Result, excerpt, invalid, quote_literal},
    translator::Translator,
};
use crate::engine::sqlparser::ast::{AccessExpr, Expr, Function, Subscript, Value};

impl<'a> Translator<'a> {
    /// `root.field[index]…`.
    pub(super) fn field_access(
        &mut self,
        root: &'a Expr,
        chain: &'a [AccessExpr],
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        if let (Expr::Function(function), [AccessExpr::Subscript(Subscript::Index { index })]) =
            (root, chain)
            && !self.is_clickhouse()
            && is_named(function, "approx_quantiles")
        {
            return self.approx_quantile(function, index, scope);
        }
        let (mut value, rest) = self.accessed_root(root, chain, scope)?;
        for access in rest {
            value = match access {
                AccessExpr::Subscript(Subscript::Index { index }) => {
                    self.item(&value, index, scope)?
                }
                AccessExpr::Dot(Expr::Value(index)) => match &index.value {
                    Value::Number(digits, _) => tuple_element(&value, digits.parse().ok())?,
                    other => return unsupported(other),
                },
                other => return unsupported(other),
            };
        }
        Ok(value)
    }

    /// Translates the longest prefix that is a name or a path through records. Returns the rest of
    /// the chain.
    fn accessed_root(
        &mut self,
        root: &'a Expr,
        chain: &'a [AccessExpr],
        scope: &mut Scope<'a>,
    ) -> Result<(SqlExpr, &'a [AccessExpr])> {
        let mut words: Vec<&'a str> = match root {
            Expr::Identifier(ident) => {
                if !matches!(chain.first(), Some(AccessExpr::Dot(Expr::Identifier(_))))
                    && let Some(value) = self.expand_alias(ident, scope)?
                {
                    return Ok((value, chain));
                }
                vec![&ident.value]
            }
            Expr::CompoundIdentifier(idents) => {
                idents.iter().map(|ident| ident.value.as_str()).collect()
            }
            _ => return Ok((self.expression(root, scope)?, chain)),
        };
        let mut rest = chain;
        while let [AccessExpr::Dot(Expr::Identifier(ident)), after @ ..] = rest {
            words.push(&ident.value);
            rest = after;
        }
        let mut resolution = self.resolve_words(&words, scope)?;
        loop {
            let (table, path) = match resolution {
                Resolution::Value(value) => return Ok((value, rest)),
                Resolution::Record { table, path } => (table, path),
            };
            let [
                AccessExpr::Subscript(Subscript::Index { index }),
                after @ ..,
            ] = rest
            else {
                return Ok((self.record_value(table, &path, scope), rest));
            };
            rest = after;
            if self.is_clickhouse() {
                let Some(key) = self.expression(index, scope)?.literal else {
                    return invalid("A key of log_attributes must be a string literal");
                };
                return Ok((Self::map_entry(table, &key, scope), rest));
            }
            if !is_first(index) {
                return invalid("A record of metadata is a list of one: use OFFSET(0)");
            }
            let mut fields: Vec<&'a str> = Vec::new();
            while let [AccessExpr::Dot(Expr::Identifier(ident)), after @ ..] = rest {
                fields.push(&ident.value);
                rest = after;
            }
            if fields.is_empty() {
                return Ok((self.record_value(table, &path, scope), rest));
            }
            resolution = Self::attribute_at(table, &path, &fields, scope);
        }
    }

    /// An item of a list, or an entry of a map.
    fn item(&mut self, value: &SqlExpr, index: &'a Expr, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        if value.ty == Type::Map {
            let Some(key) = self.expression(index, scope)?.literal else {
                return invalid("A key of log_attributes must be a string literal");
            };
            let entry = format!("attribute({}, {})", value.sql, quote_literal(&key));
            return Ok(SqlExpr::new(format!("coalesce({entry}, '')"), Type::Text));
        }
        let Some(item) = value.ty.item() else {
            return invalid(format!("{} is not a list", excerpt(&value.sql)));
        };
        let at = match index {
            Expr::Function(function) if !self.is_clickhouse() => {
                self.list_position(function, scope)?
            }
            index => self.expression(index, scope)?.integer(),
        };
        Ok(self.list_item(&value.sql, item, &at))
    }

    /// Returns an item of a list. `ClickHouse` has a default in the place of a missing one.
    pub(super) fn list_item(&self, list: &str, item: Type, at: &str) -> SqlExpr {
        let sql = format!("array_element({list}, {at})");
        match item.default_sql() {
            Some(default) if self.is_clickhouse() => {
                SqlExpr::new(format!("coalesce({sql}, {default})"), item)
            }
            _ => SqlExpr::new(sql, item),
        }
    }

    /// The one-based position of `OFFSET(n)` or `ORDINAL(n)`.
    fn list_position(&mut self, function: &'a Function, scope: &mut Scope<'a>) -> Result<String> {
        let call = Call::parse("offset", function)?;
        let Some(at) = call.args.first() else {
            return invalid("OFFSET requires a number");
        };
        let at = self.expression(at, scope)?.integer();
        match function.name.to_string().to_ascii_lowercase().as_str() {
            "offset" | "safe_offset" => Ok(format!("({at} + 1)")),
            "ordinal" | "safe_ordinal" => Ok(at),
            _ => invalid("The index of a list must be OFFSET or ORDINAL"),
        }
    }

    /// `APPROX_QUANTILES(x, n)[OFFSET(k)]`: quantile `k` of `n`.
    fn approx_quantile(
        &mut self,
        function: &'a Function,
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let call = Call::parse("approx_quantiles", function)?;
        let Expr::Function(offset) = index else {
            return invalid("APPROX_QUANTILES requires OFFSET");
        };
        let is_ordinal = offset
            .name
            .to_string()
            .to_ascii_lowercase()
            .contains("ordinal");
        let offset = Call::parse("offset", offset)?;
        let count = call.args.get(1).and_then(|arg| whole_number(arg));
        let at = offset.args.first().and_then(|arg| whole_number(arg));
        let (Some(count), Some(at)) = (count, at) else {
            return invalid("APPROX_QUANTILES requires whole numbers");
        };
        let Some(at) = at.checked_sub(u32::from(is_ordinal)) else {
            return invalid("ORDINAL starts at 1");
        };
        if at > count || count == 0 {
            return invalid("The offset exceeds the number of APPROX_QUANTILES");
        }
        let quantiles = self.quantiles_above(&call, &[(at, count)], scope)?;
        let item = quantiles.ty.item().unwrap_or(Type::Float);
        Ok(SqlExpr::new(
            format!("array_element({}, 1)", quantiles.sql),
            item,
        ))
    }

    /// `(a, b)` or `tuple(a, b)`.
    pub(super) fn tuple(
        &mut self,
        items: impl Iterator<Item = &'a Expr>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let mut arguments = Vec::new();
        let mut elements = Vec::new();
        for (at, item) in items.enumerate() {
            let item = self.expression(item, scope)?;
            arguments.push(format!("'{}', {}", at + 1, item.sql));
            elements.push(item.ty);
        }
        if elements.is_empty() {
            return invalid("A tuple has elements");
        }
        let sql = format!("named_struct({})", arguments.join(", "));
        let mut tuple = SqlExpr::new(sql, Type::Tuple);
        tuple.elements = elements;
        Ok(tuple)
    }
}

/// Returns the element of a tuple with a one-based position.
pub(super) fn tuple_element(tuple: &SqlExpr, at: Option<usize>) -> Result<SqlExpr> {
    let Some(at) = at.filter(|at| *at > 0 && tuple.ty == Type::Tuple) else {
        return invalid("An element of a tuple has a position from 1");
    };
    let ty = tuple.elements.get(at - 1).copied().unwrap_or(Type::Unknown);
    Ok(SqlExpr::new(
        format!("get_field({}, '{at}')", tuple.sql),
        ty,
    ))
}

fn is_named(function: &Function, name: &str) -> bool {
    function.name.to_string().eq_ignore_ascii_case(name)
}

/// Whether the index of a list is that of the first item.
fn is_first(index: &Expr) -> bool {
    let Expr::Function(function) = index else {
        return false;
    };
    let Ok(call) = Call::parse("offset", function) else {
        return false;
    };
    let at = call.args.first().and_then(|at| whole_number(at));
    match function.name.to_string().to_ascii_lowercase().as_str() {
        "offset" | "safe_offset" => at == Some(0),
        "ordinal" | "safe_ordinal" => at == Some(1),
        _ => false,
    }
}
