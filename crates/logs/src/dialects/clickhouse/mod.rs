//! The functions of the `ClickHouse` dialect, which has one table `logs`, empty texts for missing
//! values, numbers as conditions and select aliases in every clause.

mod lists;
mod text;
mod time;

use crate::sql::{
    Type,
    function::{
        FunctionKind::{Aggregate, Scalar, Window},
        FunctionSpec, FunctionTable, ReturnType, aggregate, quantile_exact, same_type, scalar,
        special, window,
    },
};

/// Functions that a statement can call.
pub(crate) const FUNCTIONS: FunctionTable =
    &[VALUES, text::FUNCTIONS, lists::FUNCTIONS, time::FUNCTIONS];

const VALUES: &[FunctionSpec] = &[
    // Aggregate functions. The suffix `If` adds a filter condition as the last argument.
    special("count", (0, 1), Aggregate, |translator, call, scope| {
        translator.count(call, scope)
    }),
    aggregate(
        "sum",
        (1, 1),
        ReturnType::OfArgument(0),
        "coalesce(sum({d}{0:n}){f}, 0)",
    ),
    aggregate(
        "avg",
        (1, 1),
        ReturnType::Always(Type::Float),
        "avg({d}{0:f}){f}",
    ),
    aggregate("min", (1, 1), ReturnType::OrDefault(0), "min({0}){f}"),
    aggregate("max", (1, 1), ReturnType::OrDefault(0), "max({0}){f}"),
    aggregate(
        "any",
        (1, 1),
        ReturnType::OrDefault(0),
        "first_value({0}){f}",
    ),
    aggregate(
        "anyLast",
        (1, 1),
        ReturnType::OrDefault(0),
        "last_value({0}){f}",
    ),
    aggregate(
        "argMax",
        (2, 2),
        ReturnType::OrDefault(0),
        "first_value({0} ORDER BY {1} DESC NULLS LAST){f}",
    ),
    aggregate(
        "argMin",
        (2, 2),
        ReturnType::OrDefault(0),
        "first_value({0} ORDER BY {1} ASC NULLS LAST){f}",
    ),
    aggregate(
        "uniq",
        (1, 1),
        ReturnType::Always(Type::Integer),
        "distinct_count({0}){f}",
    ),
    aggregate(
        "uniqExact",
        (1, 1),
        ReturnType::Always(Type::Integer),
        "count(DISTINCT {0}){f}",
    ),
    aggregate(
        "quantile",
        (1, 1),
        ReturnType::Always(Type::Float),
        "array_element(quantiles_between({0:f}, {p}){f}, 1)",
    ),
    special("quantileExact", (1, 1), Aggregate, quantile_exact),
    special("topK", (1, 1), Aggregate, |translator, call, scope| {
        translator.top_values(call, scope)
    }),
    aggregate(
        "quantileTDigest",
        (1, 1),
        ReturnType::Always(Type::Float),
        "array_element(quantiles_between({0:f}, {p}){f}, 1)",
    ),
    aggregate(
        "median",
        (1, 1),
        ReturnType::Always(Type::Float),
        "array_element(quantiles_between({0:f}, 0.5){f}, 1)",
    ),
    special("quantiles", (1, 1), Aggregate, |translator, call, scope| {
        translator.quantiles(call, scope)
    }),
    aggregate(
        "stddevPop",
        (1, 1),
        ReturnType::Always(Type::Float),
        "stddev_pop({0:f}){f}",
    ),
    aggregate(
        "stddevSamp",
        (1, 1),
        ReturnType::Always(Type::Float),
        "stddev_samp({0:f}){f}",
    ),
    aggregate(
        "groupArray",
        (1, 1),
        ReturnType::ListOf(0),
        "collect_values({0}, {n}, TRUE){f}",
    ),
    aggregate(
        "groupUniqArray",
        (1, 1),
        ReturnType::ListOf(0),
        "collect_distinct({0}, {n}, TRUE){f}",
    ),
    window(
        "row_number",
        (0, 0),
        ReturnType::Always(Type::Integer),
        "row_number(){f}",
    ),
    window(
        "rank",
        (0, 0),
        ReturnType::Always(Type::Integer),
        "rank(){f}",
    ),
    window(
        "dense_rank",
        (0, 0),
        ReturnType::Always(Type::Integer),
        "dense_rank(){f}",
    ),
    special("lagInFrame", (1, 3), Window, |translator, call, scope| {
        translator.neighbour("lag", call, scope)
    }),
    special("lag", (1, 3), Window, |translator, call, scope| {
        translator.neighbour("lag", call, scope)
    }),
    special("lead", (1, 3), Window, |translator, call, scope| {
        translator.neighbour("lead", call, scope)
    }),
    // Conditional functions.
    special("if", (3, 3), Scalar, |translator, call, scope| {
        translator.multi_if(call, scope)
    }),
    special("multiIf", (3, 101), Scalar, |translator, call, scope| {
        translator.multi_if(call, scope)
    }),
    same_type("coalesce", (1, 20), 0, "coalesce({*})"),
    same_type("ifNull", (2, 2), 0, "coalesce({0}, {1})"),
    same_type("nullIf", (2, 2), 0, "nullif({0}, {1})"),
    scalar("isNull", (1, 1), Type::Boolean, "({0} IS NULL)"),
    scalar("isNotNull", (1, 1), Type::Boolean, "({0} IS NOT NULL)"),
    same_type("assumeNotNull", (1, 1), 0, "{0}"),
    scalar("not", (1, 1), Type::Boolean, "(NOT {0:b})"),
    // Numeric functions.
    same_type("abs", (1, 1), 0, "abs({0:n})"),
    special("greatest", (2, 20), Scalar, |translator, call, scope| {
        translator.extreme("greatest", call, scope)
    }),
    special("least", (2, 20), Scalar, |translator, call, scope| {
        translator.extreme("least", call, scope)
    }),
    special("round", (1, 2), Scalar, |translator, call, scope| {
        translator.round(call, scope)
    }),
    scalar("sqrt", (1, 1), Type::Float, "power({0:f}, 0.5)"),
    scalar("pow", (2, 2), Type::Float, "float_power({0:f}, {1:f})"),
    scalar("power", (2, 2), Type::Float, "float_power({0:f}, {1:f})"),
    scalar("log", (1, 1), Type::Float, "ln({0:f})"),
    scalar("log10", (1, 1), Type::Float, "log10({0:f})"),
    scalar("intDiv", (2, 2), Type::Integer, "({0:i} / {1:i})"),
    scalar("modulo", (2, 2), Type::Integer, "({0:i} % {1:i})"),
    scalar(
        "toInt8",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'Int8')",
    ),
    scalar(
        "toInt16",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'Int16')",
    ),
    scalar(
        "toInt32",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'Int32')",
    ),
    scalar("toInt64", (1, 1), Type::Integer, "{0:i}"),
    scalar(
        "toUInt8",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'UInt8')",
    ),
    scalar(
        "toUInt16",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'UInt16')",
    ),
    scalar(
        "toUInt32",
        (1, 1),
        Type::Integer,
        "integer_wrapped({0:i}, 'UInt32')",
    ),
    scalar("toUInt64", (1, 1), Type::Integer, "{0:i}"),
    scalar(
        "toInt8OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'Int8'), 0)",
    ),
    scalar(
        "toInt16OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'Int16'), 0)",
    ),
    scalar(
        "toInt32OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'Int32'), 0)",
    ),
    scalar("toInt64OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar(
        "toUInt8OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'UInt8'), 0)",
    ),
    scalar(
        "toUInt16OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'UInt16'), 0)",
    ),
    scalar(
        "toUInt32OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'UInt32'), 0)",
    ),
    scalar(
        "toUInt64OrZero",
        (1, 1),
        Type::Integer,
        "coalesce(integer_within({0:i}, 'UInt64'), 0)",
    ),
    scalar(
        "toInt8OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'Int8')",
    ),
    scalar(
        "toInt16OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'Int16')",
    ),
    scalar(
        "toInt32OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'Int32')",
    ),
    scalar("toInt64OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar(
        "toUInt8OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'UInt8')",
    ),
    scalar(
        "toUInt16OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'UInt16')",
    ),
    scalar(
        "toUInt32OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'UInt32')",
    ),
    scalar(
        "toUInt64OrNull",
        (1, 1),
        Type::Integer,
        "integer_within({0:i}, 'UInt64')",
    ),
    scalar(
        "toFloat32",
        (1, 1),
        Type::Float,
        "arrow_cast({0:f}, 'Float32')",
    ),
    scalar("toFloat64", (1, 1), Type::Float, "{0:f}"),
    scalar(
        "toFloat32OrZero",
        (1, 1),
        Type::Float,
        "arrow_cast(coalesce({0:f}, 0), 'Float32')",
    ),
    scalar("toFloat64OrZero", (1, 1), Type::Float, "coalesce({0:f}, 0)"),
    scalar(
        "toFloat32OrNull",
        (1, 1),
        Type::Float,
        "arrow_cast({0:f}, 'Float32')",
    ),
    scalar("toFloat64OrNull", (1, 1), Type::Float, "{0:f}"),
];
