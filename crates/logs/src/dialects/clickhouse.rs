//! The functions of the `ClickHouse` dialect, which has one table `logs`, empty texts for missing
//! values, numbers as conditions and select aliases in every clause.

use crate::sql::{
    EXTRACT, Type,
    function::{
        FunctionKind::{Aggregate, Scalar},
        FunctionSpec, ReturnType, aggregate, same_type, scalar, special, window,
    },
};

/// Functions that a statement can call.
pub(crate) const FUNCTIONS: &[FunctionSpec] = &[
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
    aggregate("min", (1, 1), ReturnType::OfArgument(0), "min({0}){f}"),
    aggregate("max", (1, 1), ReturnType::OfArgument(0), "max({0}){f}"),
    aggregate(
        "any",
        (1, 1),
        ReturnType::OfArgument(0),
        "first_value({0}){f}",
    ),
    aggregate(
        "anyLast",
        (1, 1),
        ReturnType::OfArgument(0),
        "last_value({0}){f}",
    ),
    aggregate(
        "argMax",
        (2, 2),
        ReturnType::OfArgument(0),
        "first_value({0} ORDER BY {1} DESC NULLS LAST){f}",
    ),
    aggregate(
        "argMin",
        (2, 2),
        ReturnType::OfArgument(0),
        "first_value({0} ORDER BY {1} ASC NULLS LAST){f}",
    ),
    aggregate(
        "uniq",
        (1, 1),
        ReturnType::Always(Type::Integer),
        "approx_distinct({0}){f}",
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
        "approx_percentile_cont({0:f}, {p}){f}",
    ),
    aggregate(
        "quantileExact",
        (1, 1),
        ReturnType::Always(Type::Float),
        "percentile_cont({0:f}, {p}){f}",
    ),
    aggregate(
        "quantileTDigest",
        (1, 1),
        ReturnType::Always(Type::Float),
        "approx_percentile_cont({0:f}, {p}){f}",
    ),
    aggregate(
        "median",
        (1, 1),
        ReturnType::Always(Type::Float),
        "approx_percentile_cont({0:f}, 0.5){f}",
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
        ReturnType::Always(Type::List),
        "array_agg({0}){f}",
    ),
    aggregate(
        "groupUniqArray",
        (1, 1),
        ReturnType::Always(Type::List),
        "array_agg(DISTINCT {0}){f}",
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
    window(
        "lagInFrame",
        (1, 1),
        ReturnType::OfArgument(0),
        "lag({0}){f}",
    ),
    window(
        "leadInFrame",
        (1, 1),
        ReturnType::OfArgument(0),
        "lead({0}){f}",
    ),
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
    scalar("not", (1, 1), Type::Boolean, "(NOT {0:b})"),
    // Numeric functions.
    same_type("abs", (1, 1), 0, "abs({0:n})"),
    same_type("greatest", (2, 20), 0, "greatest({*:n})"),
    same_type("least", (2, 20), 0, "least({*:n})"),
    special("round", (1, 2), Scalar, |translator, call, scope| {
        translator.round(call, scope)
    }),
    scalar("sqrt", (1, 1), Type::Float, "sqrt({0:f})"),
    scalar("log", (1, 1), Type::Float, "ln({0:f})"),
    scalar("log10", (1, 1), Type::Float, "log10({0:f})"),
    scalar("intDiv", (2, 2), Type::Integer, "({0:i} / {1:i})"),
    scalar("modulo", (2, 2), Type::Integer, "({0:i} % {1:i})"),
    scalar("toInt8", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt16", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt32", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt64", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt8", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt16", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt32", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt64", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt8OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar("toInt16OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar("toInt32OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar("toInt64OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar("toUInt8OrZero", (1, 1), Type::Integer, "coalesce({0:i}, 0)"),
    scalar(
        "toUInt16OrZero",
        (1, 1),
        Type::Integer,
        "coalesce({0:i}, 0)",
    ),
    scalar(
        "toUInt32OrZero",
        (1, 1),
        Type::Integer,
        "coalesce({0:i}, 0)",
    ),
    scalar(
        "toUInt64OrZero",
        (1, 1),
        Type::Integer,
        "coalesce({0:i}, 0)",
    ),
    scalar("toInt8OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt16OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt32OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toInt64OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt8OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt16OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt32OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toUInt64OrNull", (1, 1), Type::Integer, "{0:i}"),
    scalar("toFloat32", (1, 1), Type::Float, "{0:f}"),
    scalar("toFloat64", (1, 1), Type::Float, "{0:f}"),
    scalar("toFloat32OrZero", (1, 1), Type::Float, "coalesce({0:f}, 0)"),
    scalar("toFloat64OrZero", (1, 1), Type::Float, "coalesce({0:f}, 0)"),
    scalar("toFloat32OrNull", (1, 1), Type::Float, "{0:f}"),
    scalar("toFloat64OrNull", (1, 1), Type::Float, "{0:f}"),
    // Text functions.
    scalar("toString", (1, 1), Type::Text, "{0:t}"),
    scalar("match", (2, 2), Type::Boolean, "regex_match({0:t}, {1:l})"),
    scalar(
        EXTRACT,
        (2, 2),
        Type::Text,
        "coalesce(regex_extract({0:t}, {1:l}), '')",
    ),
    scalar(
        "replaceRegexpAll",
        (3, 3),
        Type::Text,
        "regex_replace({0:t}, {1:l}, {2:l})",
    ),
    scalar(
        "replaceAll",
        (3, 3),
        Type::Text,
        "replace_text({0:t}, {1:t}, {2:t})",
    ),
    scalar(
        "replace",
        (3, 3),
        Type::Text,
        "replace_text({0:t}, {1:t}, {2:t})",
    ),
    scalar("concat", (1, 20), Type::Text, "join_texts({*:t})"),
    scalar("like", (2, 2), Type::Boolean, "({0:t} LIKE {1:t})"),
    scalar("notLike", (2, 2), Type::Boolean, "({0:t} NOT LIKE {1:t})"),
    scalar("ilike", (2, 2), Type::Boolean, "({0:t} ILIKE {1:t})"),
    scalar("notILike", (2, 2), Type::Boolean, "({0:t} NOT ILIKE {1:t})"),
    scalar("position", (2, 2), Type::Integer, "strpos({0:t}, {1:t})"),
    scalar(
        "positionUTF8",
        (2, 2),
        Type::Integer,
        "strpos({0:t}, {1:t})",
    ),
    scalar(
        "positionCaseInsensitive",
        (2, 2),
        Type::Integer,
        "strpos(lower({0:t}), lower({1:t}))",
    ),
    scalar(
        "positionCaseInsensitiveUTF8",
        (2, 2),
        Type::Integer,
        "strpos(lower({0:t}), lower({1:t}))",
    ),
    scalar(
        "startsWith",
        (2, 2),
        Type::Boolean,
        "starts_with({0:t}, {1:t})",
    ),
    scalar("endsWith", (2, 2), Type::Boolean, "ends_with({0:t}, {1:t})"),
    scalar(
        "hasToken",
        (2, 2),
        Type::Boolean,
        "(strpos(regex_replace({0:t}, '[^A-Za-z0-9]+|^|$', ' '), join_texts(' ', {1:l}, ' ')) > 0)",
    ),
    scalar("empty", (1, 1), Type::Boolean, "({0:t} = '')"),
    scalar("notEmpty", (1, 1), Type::Boolean, "({0:t} <> '')"),
    scalar("lower", (1, 1), Type::Text, "lower({0:t})"),
    scalar("upper", (1, 1), Type::Text, "upper({0:t})"),
    scalar("lowerUTF8", (1, 1), Type::Text, "lower({0:t})"),
    scalar("upperUTF8", (1, 1), Type::Text, "upper({0:t})"),
    scalar(
        "length",
        (1, 1),
        Type::Integer,
        "CAST(octet_length({0:t}) AS BIGINT)",
    ),
    scalar(
        "lengthUTF8",
        (1, 1),
        Type::Integer,
        "CAST(character_length({0:t}) AS BIGINT)",
    ),
    scalar("trimBoth", (1, 1), Type::Text, "btrim({0:t})"),
    scalar("left", (2, 2), Type::Text, "left({0:t}, {1:i})"),
    scalar("right", (2, 2), Type::Text, "right({0:t}, {1:i})"),
    scalar("substringUTF8", (2, 3), Type::Text, "substr({*})"),
    scalar(
        "splitByChar",
        (2, 2),
        Type::List,
        "split_text({1:t}, {0:t})",
    ),
    scalar(
        "splitByString",
        (2, 2),
        Type::List,
        "split_text({1:t}, {0:t})",
    ),
    scalar(
        "JSONExtractString",
        (2, 2),
        Type::Text,
        "coalesce(json_text({0:t}, {1:l}), '')",
    ),
    scalar(
        "JSONExtractRaw",
        (2, 2),
        Type::Text,
        "coalesce(json_text({0:t}, {1:l}), '')",
    ),
    scalar(
        "JSONExtractInt",
        (2, 2),
        Type::Integer,
        "coalesce(TRY_CAST(json_text({0:t}, {1:l}) AS BIGINT), 0)",
    ),
    scalar(
        "JSONExtractFloat",
        (2, 2),
        Type::Float,
        "coalesce(TRY_CAST(json_text({0:t}, {1:l}) AS DOUBLE), 0)",
    ),
    scalar(
        "JSONExtractBool",
        (2, 2),
        Type::Boolean,
        "coalesce(TRY_CAST(json_text({0:t}, {1:l}) AS BOOLEAN), FALSE)",
    ),
    scalar(
        "JSONHas",
        (2, 2),
        Type::Boolean,
        "(json_text({0:t}, {1:l}) IS NOT NULL)",
    ),
    // List and map functions.
    scalar("mapKeys", (1, 1), Type::List, "map_keys({0})"),
    scalar("mapValues", (1, 1), Type::List, "map_values({0})"),
    special("mapContains", (2, 2), Scalar, |translator, call, scope| {
        translator.map_contains(call, scope)
    }),
    special("arrayJoin", (1, 1), Scalar, |translator, call, scope| {
        translator.array_join(call, scope)
    }),
    scalar("has", (2, 2), Type::Boolean, "array_has({0}, {1})"),
    // Date and time functions.
    special("now", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Seconds))
    }),
    special("now64", (0, 1), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Timestamp))
    }),
    special("today", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Date))
    }),
    scalar("toDate", (1, 1), Type::Date, "CAST({0:m} AS DATE)"),
    scalar(
        "toDateTime",
        (1, 2),
        Type::Seconds,
        "arrow_cast({0:m}, 'Timestamp(Second, None)')",
    ),
    scalar("toDateTime64", (1, 3), Type::Timestamp, "{0:m}"),
    scalar(
        "parseDateTimeBestEffort",
        (1, 1),
        Type::Seconds,
        "arrow_cast({0:m}, 'Timestamp(Second, None)')",
    ),
    scalar(
        "parseDateTime64BestEffort",
        (1, 2),
        Type::Timestamp,
        "{0:m}",
    ),
    scalar(
        "toStartOfSecond",
        (1, 1),
        Type::Seconds,
        "arrow_cast({0:m}, 'Timestamp(Second, None)')",
    ),
    scalar(
        "toStartOfMinute",
        (1, 1),
        Type::Seconds,
        "start_of(60, {0:m})",
    ),
    scalar(
        "toStartOfFiveMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(300, {0:m})",
    ),
    scalar(
        "toStartOfFiveMinute",
        (1, 1),
        Type::Seconds,
        "start_of(300, {0:m})",
    ),
    scalar(
        "toStartOfTenMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(600, {0:m})",
    ),
    scalar(
        "toStartOfFifteenMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(900, {0:m})",
    ),
    scalar(
        "toStartOfHour",
        (1, 1),
        Type::Seconds,
        "start_of(3600, {0:m})",
    ),
    scalar(
        "toStartOfDay",
        (1, 1),
        Type::Seconds,
        "start_of(86400, {0:m})",
    ),
    scalar(
        "toMonday",
        (1, 1),
        Type::Date,
        "CAST(date_trunc('week', {0:m}) AS DATE)",
    ),
    scalar(
        "toStartOfWeek",
        (1, 1),
        Type::Date,
        "CAST(date_trunc('week', {0:m} + INTERVAL '1 day') - INTERVAL '1 day' AS DATE)",
    ),
    scalar(
        "toStartOfMonth",
        (1, 1),
        Type::Date,
        "CAST(date_trunc('month', {0:m}) AS DATE)",
    ),
    scalar(
        "toStartOfInterval",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_bin({1}, {0:m}), 'Timestamp(Second, None)')",
    ),
    scalar(
        "dateTrunc",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_trunc({0:u}, {1:m}), 'Timestamp(Second, None)')",
    ),
    scalar(
        "date_trunc",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_trunc({0:u}, {1:m}), 'Timestamp(Second, None)')",
    ),
    scalar(
        "toUnixTimestamp",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:m}, 'Timestamp(Second, None)') AS BIGINT)",
    ),
    scalar(
        "toUnixTimestamp64Milli",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:m}, 'Timestamp(Millisecond, None)') AS BIGINT)",
    ),
    scalar(
        "toUnixTimestamp64Micro",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:m}, 'Timestamp(Microsecond, None)') AS BIGINT)",
    ),
    scalar(
        "fromUnixTimestamp",
        (1, 1),
        Type::Seconds,
        "arrow_cast({0:i}, 'Timestamp(Second, None)')",
    ),
    scalar(
        "fromUnixTimestamp64Milli",
        (1, 1),
        Type::Timestamp,
        "arrow_cast(to_timestamp_millis({0:i}), 'Timestamp(Microsecond, None)')",
    ),
    scalar(
        "fromUnixTimestamp64Micro",
        (1, 1),
        Type::Timestamp,
        "to_timestamp_micros({0:i})",
    ),
    special(
        "formatDateTime",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.format_time(0, 1, call, scope),
    ),
    scalar("toYear", (1, 1), Type::Integer, "date_part('year', {0:m})"),
    scalar(
        "toMonth",
        (1, 1),
        Type::Integer,
        "date_part('month', {0:m})",
    ),
    scalar(
        "toDayOfMonth",
        (1, 1),
        Type::Integer,
        "date_part('day', {0:m})",
    ),
    scalar("toHour", (1, 1), Type::Integer, "date_part('hour', {0:m})"),
    scalar(
        "toMinute",
        (1, 1),
        Type::Integer,
        "date_part('minute', {0:m})",
    ),
    scalar(
        "toSecond",
        (1, 1),
        Type::Integer,
        "CAST(date_part('second', {0:m}) AS BIGINT)",
    ),
    special("dateDiff", (3, 3), Scalar, |translator, call, scope| {
        translator.time_difference(0, (1, 2), call, scope)
    }),
];
