//! Functions of dates and times. Many take a time zone as an optional last argument.

use crate::sql::{
    Translator, Type,
    function::{FunctionKind::Scalar, FunctionSpec, scalar, special},
};

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    special("now", (0, 0), Scalar, |translator, call, _| {
        Ok(translator.now_in_zone(Type::Seconds, call))
    })
    .with_zone(0),
    special("now64", (0, 1), Scalar, |translator, call, _| {
        Ok(translator.now_in_zone(Type::Timestamp, call))
    })
    .with_zone(1),
    special("today", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.current_time(Type::Date))
    }),
    special("yesterday", (0, 0), Scalar, |translator, _, _| {
        Ok(translator.yesterday())
    }),
    scalar("toTimeZone", (1, 1), Type::Timestamp, "{0:m}").with_zone(1),
    scalar("toDate", (1, 1), Type::Date, "CAST({0:m} AS DATE)").with_zone(1),
    scalar(
        "toDateTime",
        (1, 1),
        Type::Seconds,
        "arrow_cast({0:m}, 'Timestamp(Second, None)')",
    )
    .with_zone(1),
    scalar("toDateTime64", (1, 2), Type::Timestamp, "{0:m}").with_zone(2),
    scalar(
        "parseDateTimeBestEffort",
        (1, 1),
        Type::Seconds,
        "arrow_cast({0:m}, 'Timestamp(Second, None)')",
    )
    .with_zone(1),
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
    )
    .with_zone(1),
    scalar(
        "toStartOfMinute",
        (1, 1),
        Type::Seconds,
        "start_of(60, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfFiveMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(300, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfFiveMinute",
        (1, 1),
        Type::Seconds,
        "start_of(300, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfTenMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(600, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfFifteenMinutes",
        (1, 1),
        Type::Seconds,
        "start_of(900, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfHour",
        (1, 1),
        Type::Seconds,
        "start_of(3600, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toStartOfDay",
        (1, 1),
        Type::Seconds,
        "start_of(86400, {0:m})",
    )
    .with_zone(1),
    scalar(
        "toMonday",
        (1, 1),
        Type::Date,
        "CAST(date_trunc('week', {0:m}) AS DATE)",
    )
    .with_zone(1),
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
    )
    .with_zone(1),
    scalar(
        "toStartOfInterval",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_bin({1}, {0:m}), 'Timestamp(Second, None)')",
    )
    .with_zone(2),
    scalar(
        "dateTrunc",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_trunc({0:u}, {1:m}), 'Timestamp(Second, None)')",
    )
    .with_zone(2),
    scalar(
        "date_trunc",
        (2, 2),
        Type::Seconds,
        "arrow_cast(date_trunc({0:u}, {1:m}), 'Timestamp(Second, None)')",
    )
    .with_zone(2),
    scalar(
        "toUnixTimestamp",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:M}, 'Timestamp(Second, None)') AS BIGINT)",
    ),
    scalar(
        "toUnixTimestamp64Milli",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:M}, 'Timestamp(Millisecond, None)') AS BIGINT)",
    ),
    scalar(
        "toUnixTimestamp64Micro",
        (1, 1),
        Type::Integer,
        "CAST(arrow_cast({0:M}, 'Timestamp(Microsecond, None)') AS BIGINT)",
    ),
    scalar(
        "fromUnixTimestamp",
        (1, 1),
        Type::Seconds,
        "arrow_cast(greatest(least({0:i}, 4294967295), 0), 'Timestamp(Second, None)')",
    ),
    scalar(
        "fromUnixTimestamp64Milli",
        (1, 1),
        Type::Timestamp,
        "arrow_cast(to_timestamp_millis(least({0:i}, 253402300799999)), 'Timestamp(Microsecond, None)')",
    ),
    scalar(
        "fromUnixTimestamp64Micro",
        (1, 1),
        Type::Timestamp,
        "to_timestamp_micros(least({0:i}, 253402300799999999))",
    ),
    special(
        "formatDateTime",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.format_time(0, 1, call, scope),
    )
    .with_zone(2),
    scalar("toYear", (1, 1), Type::Integer, "date_part('year', {0:m})").with_zone(1),
    scalar(
        "toMonth",
        (1, 1),
        Type::Integer,
        "date_part('month', {0:m})",
    )
    .with_zone(1),
    scalar(
        "toDayOfMonth",
        (1, 1),
        Type::Integer,
        "date_part('day', {0:m})",
    )
    .with_zone(1),
    scalar("toHour", (1, 1), Type::Integer, "date_part('hour', {0:m})").with_zone(1),
    scalar(
        "toMinute",
        (1, 1),
        Type::Integer,
        "date_part('minute', {0:m})",
    )
    .with_zone(1),
    scalar(
        "toSecond",
        (1, 1),
        Type::Integer,
        "CAST(date_part('second', {0:m}) AS BIGINT)",
    )
    .with_zone(1),
    special("dateDiff", (3, 3), Scalar, |translator, call, scope| {
        translator.time_difference(0, (1, 2), call, scope)
    }),
    special("addSeconds", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("second", 1, call, scope)
    }),
    special(
        "subtractSeconds",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("second", -1, call, scope),
    ),
    special("toIntervalSecond", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("second", call)
    }),
    special("addMinutes", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("minute", 1, call, scope)
    }),
    special(
        "subtractMinutes",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("minute", -1, call, scope),
    ),
    special("toIntervalMinute", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("minute", call)
    }),
    special("addHours", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("hour", 1, call, scope)
    }),
    special(
        "subtractHours",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("hour", -1, call, scope),
    ),
    special("toIntervalHour", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("hour", call)
    }),
    special("addDays", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("day", 1, call, scope)
    }),
    special("subtractDays", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("day", -1, call, scope)
    }),
    special("toIntervalDay", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("day", call)
    }),
    special("addWeeks", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("week", 1, call, scope)
    }),
    special(
        "subtractWeeks",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("week", -1, call, scope),
    ),
    special("toIntervalWeek", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("week", call)
    }),
    special("addMonths", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("month", 1, call, scope)
    }),
    special(
        "subtractMonths",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("month", -1, call, scope),
    ),
    special("toIntervalMonth", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("month", call)
    }),
    special("addQuarters", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("quarter", 1, call, scope)
    }),
    special(
        "subtractQuarters",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("quarter", -1, call, scope),
    ),
    special("toIntervalQuarter", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("quarter", call)
    }),
    special("addYears", (2, 2), Scalar, |translator, call, scope| {
        translator.add_units("year", 1, call, scope)
    }),
    special(
        "subtractYears",
        (2, 2),
        Scalar,
        |translator, call, scope| translator.add_units("year", -1, call, scope),
    ),
    special("toIntervalYear", (1, 1), Scalar, |_, call, _| {
        Translator::interval_function("year", call)
    }),
    scalar(
        "toDayOfWeek",
        (1, 1),
        Type::Integer,
        "((CAST(date_part('dow', {0:m}) AS BIGINT) + 6) % 7 + 1)",
    ),
    scalar(
        "toDayOfYear",
        (1, 1),
        Type::Integer,
        "CAST(date_part('doy', {0:m}) AS BIGINT)",
    ),
    scalar(
        "toYYYYMM",
        (1, 1),
        Type::Integer,
        "CAST(to_char({0:m}, '%Y%m') AS BIGINT)",
    )
    .with_zone(1),
    scalar(
        "toYYYYMMDD",
        (1, 1),
        Type::Integer,
        "CAST(to_char({0:m}, '%Y%m%d') AS BIGINT)",
    )
    .with_zone(1),
];
