//! The functions of the `BigQuery` dialect, which has one table per source, `metadata` as nested
//! records and nulls for missing values.

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of a type with a lifetime is no function for all lifetimes"
)]

use crate::sql::{
    Type,
    function::{
        FunctionKind::{Aggregate, Scalar, Window},
        FunctionSpec, FunctionTable, ReturnType, aggregate, same_type, scalar, special, window,
    },
};

/// Functions that a statement can call.
pub(crate) const FUNCTIONS: FunctionTable = &[ALL];

const ALL: &[FunctionSpec] = &[
    special("count", (0, 1), Aggregate, |translator, call, scope| {
        translator.count(call, scope)
    }),
    aggregate(
        "countif",
        (1, 1),
        ReturnType::Always(Type::Integer),
        "count(CASE WHEN {0:b} THEN 1 END){f}",
    ),
    aggregate("sum", (1, 1), ReturnType::OfArgument(0), "sum({d}{0}){f}"),
    aggregate(
        "avg",
        (1, 1),
        ReturnType::Always(Type::Float),
        "avg({d}{0:f}){f}",
    ),
    aggregate("min", (1, 1), ReturnType::OfArgument(0), "min({0}){f}"),
    aggregate("max", (1, 1), ReturnType::OfArgument(0), "max({0}){f}"),
    aggregate(
        "any_value",
        (1, 1),
        ReturnType::OfArgument(0),
        "first_value({0}){f}",
    ),
    aggregate(
        "approx_count_distinct",
        (1, 1),
        ReturnType::Always(Type::Integer),
        "distinct_count({0}){f}",
    ),
    special("array_agg", (1, 1), Aggregate, |translator, call, scope| {
        translator.array_agg(call, scope)
    }),
    special(
        "string_agg",
        (1, 2),
        Aggregate,
        |translator, call, scope| translator.string_agg(call, scope),
    ),
    special(
        "approx_quantiles",
        (2, 2),
        Aggregate,
        |translator, call, scope| translator.approx_quantiles(call, scope),
    ),
    aggregate(
        "stddev",
        (1, 1),
        ReturnType::Always(Type::Float),
        "stddev_samp({0:f}){f}",
    ),
    aggregate(
        "stddev_samp",
        (1, 1),
        ReturnType::Always(Type::Float),
        "stddev_samp({0:f}){f}",
    ),
    aggregate(
        "stddev_pop",
        (1, 1),
        ReturnType::Always(Type::Float),
        "stddev_pop({0:f}){f}",
    ),
    aggregate(
        "logical_or",
        (1, 1),
        ReturnType::Always(Type::Boolean),
        "bool_or({0:b}){f}",
    ),
    aggregate(
        "logical_and",
        (1, 1),
        ReturnType::Always(Type::Boolean),
        "bool_and({0:b}){f}",
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
    same_type("coalesce", (1, 20), 0, "coalesce({*})"),
    same_type("ifnull", (2, 2), 0, "coalesce({0}, {1})"),
    same_type("nullif", (2, 2), 0, "nullif({0}, {1})"),
    // Numeric functions.
    same_type("abs", (1, 1), 0, "abs({0})"),
    same_type("greatest", (2, 20), 0, "greatest({*})"),
    same_type("least", (2, 20), 0, "least({*})"),
    special("round", (1, 2), Scalar, |translator, call, scope| {
        translator.round(call, scope)
    }),
    scalar("sqrt", (1, 1), Type::Float, "sqrt({0:f})"),
    scalar("div", (2, 2), Type::Integer, "({0:i} / {1:i})"),
    scalar("mod", (2, 2), Type::Integer, "({0:i} % {1:i})"),
    scalar(
        "safe_divide",
        (2, 2),
        Type::Float,
        "({0:f} / nullif({1:f}, 0))",
    ),
    // Text functions.
    scalar(
        "regexp_contains",
        (2, 2),
        Type::Boolean,
        "regex_match({0:t}, {1:l})",
    ),
    scalar(
        "regexp_extract",
        (2, 2),
        Type::Text,
        "regex_extract({0:t}, {1:l})",
    ),
    scalar(
        "regexp_replace",
        (3, 3),
        Type::Text,
        "regex_replace({0:t}, {1:l}, {2:l})",
    ),
    scalar(
        "starts_with",
        (2, 2),
        Type::Boolean,
        "starts_with({0:t}, {1:t})",
    ),
    scalar(
        "ends_with",
        (2, 2),
        Type::Boolean,
        "ends_with({0:t}, {1:t})",
    ),
    scalar(
        "contains_substr",
        (2, 2),
        Type::Boolean,
        "(strpos(lower({0:t}), lower({1:t})) > 0)",
    ),
    scalar("strpos", (2, 2), Type::Integer, "strpos({0:t}, {1:t})"),
    scalar("split", (2, 2), Type::TEXTS, "split_text({0:t}, {1:t})"),
    scalar("lower", (1, 1), Type::Text, "lower({0:t})"),
    scalar("upper", (1, 1), Type::Text, "upper({0:t})"),
    scalar(
        "length",
        (1, 1),
        Type::Integer,
        "CAST(character_length({0:t}) AS BIGINT)",
    ),
    scalar(
        "char_length",
        (1, 1),
        Type::Integer,
        "CAST(character_length({0:t}) AS BIGINT)",
    ),
    scalar("ltrim", (1, 1), Type::Text, "ltrim({0:t})"),
    scalar("rtrim", (1, 1), Type::Text, "rtrim({0:t})"),
    scalar("left", (2, 2), Type::Text, "left({0:t}, {1:i})"),
    scalar("right", (2, 2), Type::Text, "right({0:t}, {1:i})"),
    scalar("concat", (1, 20), Type::Text, "join_texts({*:t})"),
    scalar(
        "replace",
        (3, 3),
        Type::Text,
        "replace_text({0:t}, {1:t}, {2:t})",
    ),
    special("json_value", (1, 2), Scalar, |translator, call, scope| {
        translator.json_path("scalar", call, scope)
    }),
    special(
        "json_extract_scalar",
        (1, 2),
        Scalar,
        |translator, call, scope| translator.json_path("scalar", call, scope),
    ),
    special("json_query", (1, 2), Scalar, |translator, call, scope| {
        translator.json_path("query", call, scope)
    }),
    special("json_extract", (1, 2), Scalar, |translator, call, scope| {
        translator.json_path("query", call, scope)
    }),
    special(
        "to_json_string",
        (1, 1),
        Scalar,
        |translator, call, scope| translator.json_text(call, scope),
    ),
    scalar(
        "regexp_extract_all",
        (2, 2),
        Type::TEXTS,
        "regex_extract_all({0:t}, {1:l})",
    ),
    scalar(
        "array_length",
        (1, 1),
        Type::Integer,
        "CASE WHEN {0} IS NOT NULL THEN CAST(coalesce(array_length({0}), 0) AS BIGINT) END",
    ),
    scalar(
        "array_to_string",
        (2, 2),
        Type::Text,
        "array_to_string({0}, {1:t})",
    ),
    // Date and time functions.
    special("current_timestamp", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Timestamp))
    }),
    special("current_date", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Date))
    }),
    scalar("timestamp", (1, 1), Type::Timestamp, "{0:m}"),
    scalar(
        "datetime",
        (1, 1),
        Type::DateTime,
        "arrow_cast({0:m}, 'Timestamp(Nanosecond, None)')",
    ),
    scalar("date", (1, 1), Type::Date, "CAST({0:m} AS DATE)"),
    scalar(
        "timestamp_trunc",
        (2, 2),
        Type::Timestamp,
        "date_trunc({1:u}, {0:m})",
    ),
    scalar(
        "datetime_trunc",
        (2, 2),
        Type::DateTime,
        "arrow_cast(date_trunc({1:u}, {0:m}), 'Timestamp(Nanosecond, None)')",
    ),
    scalar(
        "date_trunc",
        (2, 2),
        Type::Date,
        "CAST(date_trunc({1:u}, {0:m}) AS DATE)",
    ),
    scalar("timestamp_sub", (2, 2), Type::Timestamp, "({0:m} - {1})"),
    scalar("timestamp_add", (2, 2), Type::Timestamp, "({0:m} + {1})"),
    scalar(
        "datetime_sub",
        (2, 2),
        Type::DateTime,
        "arrow_cast({0:m} - {1}, 'Timestamp(Nanosecond, None)')",
    ),
    scalar(
        "datetime_add",
        (2, 2),
        Type::DateTime,
        "arrow_cast({0:m} + {1}, 'Timestamp(Nanosecond, None)')",
    ),
    scalar("date_sub", (2, 2), Type::Date, "CAST({0:m} - {1} AS DATE)"),
    scalar("date_add", (2, 2), Type::Date, "CAST({0:m} + {1} AS DATE)"),
    special(
        "datetime_diff",
        (3, 3),
        Scalar,
        |translator, call, scope| translator.time_difference(2, (1, 0), call, scope),
    ),
    special(
        "timestamp_diff",
        (3, 3),
        Scalar,
        |translator, call, scope| translator.time_difference(2, (1, 0), call, scope),
    ),
    special(
        "format_timestamp",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.format_time(1, 0, call, scope),
    ),
    scalar(
        "unix_micros",
        (1, 1),
        Type::Integer,
        "CAST({0:m} AS BIGINT)",
    ),
    scalar(
        "unix_millis",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:m}, 'Timestamp(Millisecond, None)') AS BIGINT)",
    ),
    scalar(
        "unix_seconds",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:m}, 'Timestamp(Second, None)') AS BIGINT)",
    ),
    scalar(
        "timestamp_micros",
        (1, 1),
        Type::Timestamp,
        "to_timestamp_micros({0:i})",
    ),
    scalar(
        "timestamp_millis",
        (1, 1),
        Type::Timestamp,
        "arrow_cast(to_timestamp_millis({0:i}), 'Timestamp(Microsecond, None)')",
    ),
    scalar(
        "timestamp_seconds",
        (1, 1),
        Type::Timestamp,
        "arrow_cast(to_timestamp_seconds({0:i}), 'Timestamp(Microsecond, None)')",
    ),
];
