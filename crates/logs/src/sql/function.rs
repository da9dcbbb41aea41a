//! Function tables as data: the arity, return type and translation of each function.

use super::{
    call::Call,
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::Result,
    translator::Translator,
};

/// The functions of a dialect.
pub(crate) type FunctionTable = &'static [&'static [FunctionSpec]];

/// Translates a call that a template cannot express.
pub(crate) type TranslateCall =
    for<'a> fn(&mut Translator<'a>, &Call<'a>, &mut Scope<'a>) -> Result<SqlExpr>;

/// A function of a dialect.
pub(crate) struct FunctionSpec {
    pub(crate) name: &'static str,
    /// Minimum and maximum number of arguments.
    pub(crate) arity: (usize, usize),
    pub(crate) kind: FunctionKind,
    pub(crate) returns: ReturnType,
    pub(crate) translation: Translation,
    /// The index of an optional argument that is a time zone.
    pub(crate) zone_at: Option<usize>,
}

impl FunctionSpec {
    /// Adds an optional argument with a time zone, the last one. The arity does not include it.
    pub(crate) const fn with_zone(mut self, at: usize) -> Self {
        self.zone_at = Some(at);
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    Scalar,
    /// An aggregate function, optionally with a filter or over a window.
    Aggregate,
    /// A function that requires `OVER`.
    Window,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ReturnType {
    Always(Type),
    /// The type of the argument with this index.
    OfArgument(usize),
    /// The type of the argument. Its default replaces a missing result in `ClickHouse`.
    OrDefault(usize),
    /// A list of values of the type of the argument.
    ListOf(usize),
}

#[derive(Clone, Copy)]
pub(crate) enum Translation {
    /// SQL with placeholders. `{0}` is the first argument unchanged, `{0:t}` as text, `{0:i}` as an
    /// integer, `{0:f}` as a float, `{0:n}` as any number, `{0:b}` as a condition, `{0:m}` as a
    /// timestamp, `{0:l}` as a literal, `{0:r}` as a pattern and `{0:u}` as a time unit; `{*}`
    /// stands for all arguments. `{p}` is the level of a quantile, `{n}` the number in a parameter
    /// or 0, `{f}` the filter and window, `{d}` the `DISTINCT` keyword and `{o}` the `ORDER BY`
    /// clause of an aggregate.
    Template(&'static str),
    Code(TranslateCall),
}

/// A scalar function.
pub(crate) const fn scalar(
    name: &'static str,
    arity: (usize, usize),
    returns: Type,
    template: &'static str,
) -> FunctionSpec {
    FunctionSpec {
        name,
        arity,
        kind: FunctionKind::Scalar,
        returns: ReturnType::Always(returns),
        translation: Translation::Template(template),
        zone_at: None,
    }
}

/// A scalar function that returns the type of an argument.
pub(crate) const fn same_type(
    name: &'static str,
    arity: (usize, usize),
    argument: usize,
    template: &'static str,
) -> FunctionSpec {
    FunctionSpec {
        name,
        arity,
        kind: FunctionKind::Scalar,
        returns: ReturnType::OfArgument(argument),
        translation: Translation::Template(template),
        zone_at: None,
    }
}

/// An aggregate function.
pub(crate) const fn aggregate(
    name: &'static str,
    arity: (usize, usize),
    returns: ReturnType,
    template: &'static str,
) -> FunctionSpec {
    FunctionSpec {
        name,
        arity,
        kind: FunctionKind::Aggregate,
        returns,
        translation: Translation::Template(template),
        zone_at: None,
    }
}

/// A window function.
pub(crate) const fn window(
    name: &'static str,
    arity: (usize, usize),
    returns: ReturnType,
    template: &'static str,
) -> FunctionSpec {
    FunctionSpec {
        name,
        arity,
        kind: FunctionKind::Window,
        returns,
        translation: Translation::Template(template),
        zone_at: None,
    }
}

/// A function that is translated by code.
pub(crate) const fn special(
    name: &'static str,
    arity: (usize, usize),
    kind: FunctionKind,
    translate: TranslateCall,
) -> FunctionSpec {
    FunctionSpec {
        name,
        arity,
        kind,
        returns: ReturnType::Always(Type::Unknown),
        translation: Translation::Code(translate),
        zone_at: None,
    }
}

/// Translates `arrayStringConcat`.
pub(crate) fn array_join_texts<'a>(
    translator: &mut Translator<'a>,
    call: &Call<'a>,
    scope: &mut Scope<'a>,
) -> Result<SqlExpr> {
    translator.array_join_texts(call, scope)
}

/// Translates `quantileExact`.
pub(crate) fn quantile_exact<'a>(
    translator: &mut Translator<'a>,
    call: &Call<'a>,
    scope: &mut Scope<'a>,
) -> Result<SqlExpr> {
    translator.quantile_exact(call, scope)
}
