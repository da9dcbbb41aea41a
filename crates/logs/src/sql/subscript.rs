//! Subscripts: entries of `log_attributes`, items of lists and approximate quantiles.

use super::{
    Result, SqlExpr, Translator, Type,
    call::Call,
    excerpt, invalid,
    scope::{Resolution, Scope},
};
use crate::engine::sqlparser::ast::{Expr, Function, Ident, Value};

impl<'a> Translator<'a> {
    /// `root[index]`.
    pub(super) fn subscript(
        &mut self,
        root: &'a Expr,
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        match root {
            Expr::Identifier(ident) if self.is_clickhouse() => {
                let idents = std::slice::from_ref(ident);
                self.map_or_list_item(root, idents, index, scope)
            }
            Expr::CompoundIdentifier(idents) if self.is_clickhouse() => {
                self.map_or_list_item(root, idents, index, scope)
            }
            Expr::Function(function)
                if !self.is_clickhouse() && is_named(function, "approx_quantiles") =>
            {
                self.approx_quantile(function, index, scope)
            }
            _ => self.list_item(root, index, scope),
        }
    }

    /// An entry of `log_attributes`, or an item of a column with a list.
    fn map_or_list_item(
        &mut self,
        root: &'a Expr,
        idents: &'a [Ident],
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        match self.resolve(idents, scope)? {
            Resolution::Record { table, path } if path.is_empty() => {
                match self.expression(index, scope)?.literal {
                    Some(key) => Ok(Self::map_entry(table, &key, scope)),
                    None => invalid("A key of log_attributes must be a string literal"),
                }
            }
            _ => self.list_item(root, index, scope),
        }
    }

    fn list_item(
        &mut self,
        root: &'a Expr,
        index: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let list = self.expression(root, scope)?;
        if list.ty != Type::List {
            return invalid(format!("{} is not a list", excerpt(&root.to_string())));
        }
        let at = match index {
            Expr::Function(function) => self.list_position(function, scope)?,
            index => self.expression(index, scope)?.integer(),
        };
        Ok(SqlExpr::new(
            format!("array_element({}, {at})", list.sql),
            Type::Text,
        ))
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
        let offset = Call::parse("offset", offset)?;
        let count = call.args.get(1).and_then(|arg| whole_number(arg));
        let at = offset.args.first().and_then(|arg| whole_number(arg));
        let (Some(count), Some(at)) = (count, at) else {
            return invalid("APPROX_QUANTILES requires whole numbers");
        };
        if at > count || count == 0 {
            return invalid("The offset exceeds the number of APPROX_QUANTILES");
        }
        let (value, _) = self.argument(&call, 0, "f", scope)?;
        let level = f64::from(at) / f64::from(count);
        Ok(SqlExpr::new(
            format!("approx_percentile_cont({value}, {level:?})"),
            Type::Float,
        ))
    }
}

fn is_named(function: &Function, name: &str) -> bool {
    function.name.to_string().eq_ignore_ascii_case(name)
}

fn whole_number(expr: &Expr) -> Option<u32> {
    let Expr::Value(value) = expr else {
        return None;
    };
    match &value.value {
        Value::Number(digits, _) => digits.parse().ok(),
        _ => None,
    }
}
