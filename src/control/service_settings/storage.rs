//! The settings of a project's Storage service.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    catalog::SettingsCatalog,
    setting::{ServiceSetting, TextForm, ValueType, Variable, VariableForm},
};

/// The catalog of the Storage service.
pub static STORAGE: SettingsCatalog = SettingsCatalog {
    service: "storage",
    settings: || &STORAGE_SETTINGS,
    ignored: &[],
    check: |_, _| Ok(()),
};

/// Largest 32-bit integer.
const LARGE: i64 = 2_147_483_647;
/// Largest file, in bytes: 500 GiB.
const FILE_BYTES_MAX: i64 = 536_870_912_000;

const BOOLEAN: ValueType = ValueType::Boolean;
const COUNT: ValueType = ValueType::Integer(0, LARGE);
const TEXT: ValueType = ValueType::Text(TextForm::Any);

/// All settings by name.
static STORAGE_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let target = ValueType::Text(TextForm::OneOf(&["main", "canary"]));
    let settings: [(&str, ValueType, Value, &str); 11] = [
        (
            "fileSizeLimit",
            ValueType::Integer(0, FILE_BYTES_MAX),
            json!(52_428_800),
            "UPLOAD_FILE_SIZE_LIMIT",
        ),
        (
            "features.imageTransformation.enabled",
            BOOLEAN,
            json!(false),
            "IMAGE_TRANSFORMATION_ENABLED",
        ),
        (
            "features.s3Protocol.enabled",
            BOOLEAN,
            json!(true),
            "S3_PROTOCOL_ENABLED",
        ),
        (
            "features.icebergCatalog.enabled",
            BOOLEAN,
            json!(false),
            "ICEBERG_ENABLED",
        ),
        (
            "features.icebergCatalog.maxNamespaces",
            COUNT,
            json!(10),
            "ICEBERG_MAX_NAMESPACES",
        ),
        (
            "features.icebergCatalog.maxTables",
            COUNT,
            json!(10),
            "ICEBERG_MAX_TABLES",
        ),
        (
            "features.icebergCatalog.maxCatalogs",
            COUNT,
            json!(2),
            "ICEBERG_MAX_CATALOGS",
        ),
        (
            "features.vectorBuckets.enabled",
            BOOLEAN,
            json!(false),
            "VECTOR_ENABLED",
        ),
        (
            "features.vectorBuckets.maxBuckets",
            COUNT,
            json!(10),
            "VECTOR_MAX_BUCKETS",
        ),
        (
            "features.vectorBuckets.maxIndexes",
            COUNT,
            json!(5),
            "VECTOR_MAX_INDEXES",
        ),
        // The release of the hosted platform, which the operator chooses here.
        ("external.upstreamTarget", target, json!("main"), ""),
    ];
    let facts: [(&str, ValueType, Value); 4] = [
        ("capabilities.list_v2", BOOLEAN, json!(true)),
        ("capabilities.iceberg_catalog", BOOLEAN, json!(false)),
        // The schema that the platform creates in each database has the objects of this migration.
        ("migrationVersion", TEXT, json!("operation-ergonomics")),
        ("databasePoolMode", TEXT, json!("recycled")),
    ];
    let mut all = BTreeMap::new();
    for (name, value_type, default, variable) in settings {
        let variable = (!variable.is_empty()).then(|| Variable {
            name: variable.to_owned(),
            form: VariableForm::Plain,
        });
        let setting = ServiceSetting {
            variable,
            ..ServiceSetting::new(value_type, default)
        }
        .explained(explanation(name));
        all.insert(name.to_owned(), setting);
    }
    for (name, value_type, default) in facts {
        let fact = ServiceSetting::new(value_type, default).read_only();
        all.insert(name.to_owned(), fact.explained(explanation(name)));
    }
    all
});

fn explanation(name: &str) -> &'static str {
    let found = EXPLANATIONS.iter().find(|(setting, _)| *setting == name);
    found.map_or("", |(_, text)| text)
}

const EXPLANATIONS: [(&str, &str); 15] = [
    (
        "capabilities.iceberg_catalog",
        "Whether the service has an Iceberg catalog.",
    ),
    (
        "capabilities.list_v2",
        "Whether the service lists objects by cursor.",
    ),
    ("databasePoolMode", "Reuse of sessions with the database."),
    ("external.upstreamTarget", "Release channel of the service."),
    (
        "features.icebergCatalog.enabled",
        "Whether the Iceberg catalog is on.",
    ),
    (
        "features.icebergCatalog.maxCatalogs",
        "Most Iceberg catalogs.",
    ),
    (
        "features.icebergCatalog.maxNamespaces",
        "Most namespaces of an Iceberg catalog.",
    ),
    (
        "features.icebergCatalog.maxTables",
        "Most tables of an Iceberg namespace.",
    ),
    (
        "features.imageTransformation.enabled",
        "Whether images are resized on request.",
    ),
    (
        "features.s3Protocol.enabled",
        "Whether clients can use the S3 protocol.",
    ),
    (
        "features.vectorBuckets.enabled",
        "Whether vector buckets are on.",
    ),
    ("features.vectorBuckets.maxBuckets", "Most vector buckets."),
    (
        "features.vectorBuckets.maxIndexes",
        "Most indexes of a vector bucket.",
    ),
    ("fileSizeLimit", "Largest file, in bytes."),
    (
        "migrationVersion",
        "Last migration of the service's schema.",
    ),
];
