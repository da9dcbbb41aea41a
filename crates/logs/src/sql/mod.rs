//! Translates client SQL to SQL for the engine.
//!
//! No part of the client's text reaches the engine unchanged: the syntax tree is walked, supported
//! constructs are written anew with quoted names and literals, and everything else is rejected.
//! The function table of the dialect is passed in by the caller as a
//! [`FunctionTable`](function::FunctionTable).

mod call;
mod cast;
mod dialect;
mod expression;
mod fill;
mod from;
pub(crate) mod function;
mod json;
mod lambda;
mod literal;
mod naming;
mod operator;
mod order;
mod parse;
mod predicate;
mod query;
mod scope;
mod select;
mod special;
mod sql_expr;
mod statement;
mod subscript;
mod text;
mod time;
mod translator;

pub use self::{dialect::Dialect, parse::SQL_BYTES_MAX};
pub(crate) use self::{
    parse::EXTRACT,
    sql_expr::{SqlExpr, Type},
    statement::translate,
    translator::Translator,
};
