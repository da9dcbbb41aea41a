//! Functions of texts, JSON texts and URLs.

use crate::sql::{
    EXTRACT, SqlExpr, Type,
    function::{FunctionKind::Scalar, FunctionSpec, scalar, special},
};

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    scalar("toString", (1, 1), Type::Text, "{0:t}"),
    scalar("match", (2, 2), Type::Boolean, "regex_match({0:t}, {1:r})"),
    scalar(
        EXTRACT,
        (2, 2),
        Type::Text,
        "coalesce(regex_extract({0:t}, {1:r}), '')",
    ),
    scalar(
        "replaceRegexpAll",
        (3, 3),
        Type::Text,
        "regex_replace_all({0:t}, {1:r}, {2:l})",
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
    scalar(
        "replaceRegexpOne",
        (3, 3),
        Type::Text,
        "regex_replace_one({0:t}, {1:r}, {2:l})",
    ),
    scalar(
        "extractAll",
        (2, 2),
        Type::TEXTS,
        "regex_extract_all({0:t}, {1:r})",
    ),
    scalar("concat", (1, 20), Type::Text, "join_texts({*:t})"),
    special("like", (2, 2), Scalar, |translator, call, scope| {
        translator.like_call("LIKE", call, scope)
    }),
    special("notLike", (2, 2), Scalar, |translator, call, scope| {
        translator.like_call("NOT LIKE", call, scope)
    }),
    special("ilike", (2, 2), Scalar, |translator, call, scope| {
        translator.like_call("ILIKE", call, scope)
    }),
    special("notILike", (2, 2), Scalar, |translator, call, scope| {
        translator.like_call("NOT ILIKE", call, scope)
    }),
    special("position", (2, 3), Scalar, |translator, call, scope| {
        translator.text_position(call, scope)
    }),
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
        "byte_position(ascii_lower({0:t}), ascii_lower({1:t}))",
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
        "(strpos(regex_replace({0:t}, '[\\x00-/:-@\\[-`\\x7b-\\x7f]+|^|$', ' '), join_texts(' ', {1:l}, ' ')) > 0)",
    ),
    special("empty", (1, 1), Scalar, |translator, call, scope| {
        translator.emptiness("=", call, scope)
    }),
    special("notEmpty", (1, 1), Scalar, |translator, call, scope| {
        translator.emptiness("<>", call, scope)
    }),
    scalar("lower", (1, 1), Type::Text, "ascii_lower({0:t})"),
    scalar("upper", (1, 1), Type::Text, "ascii_upper({0:t})"),
    scalar("lowerUTF8", (1, 1), Type::Text, "lower({0:t})"),
    scalar("upperUTF8", (1, 1), Type::Text, "upper({0:t})"),
    special("length", (1, 1), Scalar, |translator, call, scope| {
        translator.length("octet_length", call, scope)
    }),
    scalar(
        "lengthUTF8",
        (1, 1),
        Type::Integer,
        "CAST(character_length({0:t}) AS BIGINT)",
    ),
    scalar("trimBoth", (1, 1), Type::Text, "btrim({0:t})"),
    scalar("trimLeft", (1, 1), Type::Text, "ltrim({0:t})"),
    scalar("trimRight", (1, 1), Type::Text, "rtrim({0:t})"),
    scalar("left", (2, 2), Type::Text, "byte_slice({0:t}, 1, {1:i})"),
    scalar("right", (2, 2), Type::Text, "byte_right({0:t}, {1:i})"),
    scalar(
        "leftUTF8",
        (2, 2),
        Type::Text,
        "char_slice({0:t}, 1, {1:i})",
    ),
    scalar("substringUTF8", (2, 3), Type::Text, "char_slice({*})"),
    scalar(
        "splitByChar",
        (2, 2),
        Type::TEXTS,
        "split_bytes({1:t}, {0:t})",
    ),
    scalar(
        "splitByString",
        (2, 2),
        Type::TEXTS,
        "split_bytes({1:t}, {0:t})",
    ),
    special(
        "JSONExtractString",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            let default = (Type::Text, "''");
            translator.json_value_or("json_text", Some("string"), default, call, scope)
        },
    ),
    special(
        "JSONExtractRaw",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            let default = (Type::Text, "''");
            translator.json_value_or("json_text", Some("raw"), default, call, scope)
        },
    ),
    special(
        "JSONExtractInt",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            translator.json_value_or("json_integer", None, (Type::Integer, "0"), call, scope)
        },
    ),
    special(
        "JSONExtractUInt",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            let number = translator.json_extract("json_integer", None, call, scope)?;
            let sql = format!("coalesce(integer_within({number}, 'UInt64'), 0)");
            Ok(SqlExpr::new(sql, Type::Integer))
        },
    ),
    special(
        "JSONExtractFloat",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            translator.json_value_or("json_float", None, (Type::Float, "0"), call, scope)
        },
    ),
    special(
        "JSONExtractBool",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            let default = (Type::Boolean, "FALSE");
            translator.json_value_or("json_boolean", None, default, call, scope)
        },
    ),
    special(
        "JSONExtractKeys",
        (1, 20),
        Scalar,
        |translator, call, scope| {
            let sql = translator.json_extract("json_keys", None, call, scope)?;
            Ok(SqlExpr::new(sql, Type::TEXTS))
        },
    ),
    special("JSONHas", (2, 20), Scalar, |translator, call, scope| {
        let sql = translator.json_extract("json_exists", None, call, scope)?;
        Ok(SqlExpr::new(sql, Type::Boolean))
    }),
    special("JSONLength", (1, 20), Scalar, |translator, call, scope| {
        let sql = translator.json_extract("json_length", None, call, scope)?;
        Ok(SqlExpr::new(sql, Type::Integer))
    }),
    special("JSON_VALUE", (2, 2), Scalar, |translator, call, scope| {
        let value = translator.json_path("value", call, scope)?;
        let sql = format!("coalesce({}, '')", value.sql);
        Ok(SqlExpr::new(sql, Type::Text))
    }),
    scalar("isValidJSON", (1, 1), Type::Boolean, "json_valid({0:t})"),
    scalar(
        "protocol",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'protocol')",
    ),
    scalar("domain", (1, 1), Type::Text, "url_part({0:t}, 'domain')"),
    scalar(
        "domainWithoutWWW",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'domain_without_www')",
    ),
    scalar("path", (1, 1), Type::Text, "url_part({0:t}, 'path')"),
    scalar(
        "pathFull",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'path_full')",
    ),
    scalar(
        "queryString",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'query')",
    ),
    scalar(
        "cutQueryString",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'without_query')",
    ),
    scalar(
        "cutQueryStringAndFragment",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'without_query_and_fragment')",
    ),
    scalar(
        "decodeURLComponent",
        (1, 1),
        Type::Text,
        "url_part({0:t}, 'decoded')",
    ),
    scalar(
        "extractURLParameter",
        (2, 2),
        Type::Text,
        "url_part({0:t}, 'parameter', {1:t})",
    ),
];
