//! Functions of arrays, maps and tuples.

use crate::sql::{
    Type,
    function::{FunctionKind::Scalar, FunctionSpec, array_join_texts, same_type, scalar, special},
};

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    scalar("mapKeys", (1, 1), Type::TEXTS, "map_keys({0})"),
    scalar("mapValues", (1, 1), Type::TEXTS, "map_values({0})"),
    special("mapContains", (2, 2), Scalar, |translator, call, scope| {
        translator.map_contains(call, scope)
    }),
    special("arrayJoin", (1, 1), Scalar, |translator, call, scope| {
        translator.array_join(call, scope)
    }),
    special("tuple", (1, 20), Scalar, |translator, call, scope| {
        translator.tuple_call(call, scope)
    }),
    special("tupleElement", (2, 2), Scalar, |translator, call, scope| {
        translator.tuple_element_call(call, scope)
    }),
    special("arrayElement", (2, 2), Scalar, |translator, call, scope| {
        translator.array_element(call, scope)
    }),
    special("arrayMap", (2, 2), Scalar, |translator, call, scope| {
        translator.array_map(call, scope)
    }),
    special("arrayFilter", (2, 2), Scalar, |translator, call, scope| {
        translator.array_filter(call, scope)
    }),
    special("arrayExists", (2, 2), Scalar, |translator, call, scope| {
        translator.array_exists(call, scope)
    }),
    special("arrayCount", (2, 2), Scalar, |translator, call, scope| {
        translator.array_count(call, scope)
    }),
    same_type(
        "arraySort",
        (1, 1),
        0,
        "array_sort({0}, 'ASC', 'NULLS LAST')",
    ),
    same_type(
        "arrayReverseSort",
        (1, 1),
        0,
        "array_sort({0}, 'DESC', 'NULLS LAST')",
    ),
    same_type("arrayReverse", (1, 1), 0, "array_reverse({0})"),
    same_type("arrayDistinct", (1, 1), 0, "array_distinct({0})"),
    special("arrayStringConcat", (1, 2), Scalar, array_join_texts),
    scalar(
        "indexOf",
        (2, 2),
        Type::Integer,
        "coalesce(CAST(array_position({0}, {1}) AS BIGINT), 0)",
    ),
    scalar(
        "has",
        (2, 2),
        Type::Boolean,
        "coalesce(array_has({0}, {1}), FALSE)",
    ),
    scalar("hasAny", (2, 2), Type::Boolean, "array_has_any({0}, {1})"),
    scalar("hasAll", (2, 2), Type::Boolean, "array_has_all({0}, {1})"),
];
