//! Function tables as data: the arity, return type and translation of each function.

use super::{Result, SqlExpr, Translator, Type, call::Call, scope::Scope};

/// The functions of a dialect.
pub(crate) type FunctionTable = &'static [FunctionSpec];

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
}

#[derive(Clone, Copy)]
pub(crate) enum Translation {
    /// SQL with placeholders. `{0}` is the first argument unchanged, `{0:t}` as text, `{0:i}` as an
    /// integer, `{0:f}` as a float, `{0:n}` as any number, `{0:b}` as a condition, `{0:m}` as a
    /// timestamp, `{0:l}` as a literal and `{0:u}` as a time unit; `{*}` stands for all arguments.
    /// `{p}` is the parameter, `{f}` the filter and window, `{d}` the `DISTINCT` keyword and `{o}`
    /// the `ORDER BY` clause of an aggregate.
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
    }
}
