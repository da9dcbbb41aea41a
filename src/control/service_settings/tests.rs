//! Rules of all catalogs: the document after an update is the merge, over random updates.

use std::cell::Cell;

use proptest::prelude::*;

use super::{
    setting::{TextForm, ValueType},
    *,
};

fn reference() -> ProjectRef {
    "abcdefghijklmnopqrst".parse().unwrap()
}

/// Generates a value of a setting, mostly a valid one.
fn value(setting: &ServiceSetting) -> BoxedStrategy<Value> {
    let valid: BoxedStrategy<Value> = match setting.value_type {
        ValueType::Boolean => any::<bool>().prop_map(Value::from).boxed(),
        ValueType::Integer(min, max) => (min..=max).prop_map(Value::from).boxed(),
        ValueType::Number => (0..1000_u32).prop_map(Value::from).boxed(),
        ValueType::Text(TextForm::OneOf(options)) => proptest::sample::select(options)
            .prop_map(Value::from)
            .boxed(),
        ValueType::Text(_) => "[a-z0-9@.:/]{0,20}".prop_map(Value::from).boxed(),
        ValueType::Networks(_) => Just(json!(["10.0.0.0/8"])).boxed(),
    };
    let invalid = proptest::sample::select(vec![
        Value::Null,
        json!(-1),
        json!(1.5),
        json!({}),
        json!([]),
        json!(i64::MAX),
        json!("a\0b"),
    ]);
    prop_oneof![12 => valid, 1 => invalid].boxed()
}

/// Generates updates by name. Groups are completed.
fn updates(catalog: &'static SettingsCatalog) -> impl Strategy<Value = Vec<Map<String, Value>>> {
    let settings = (catalog.settings)();
    let names: Vec<&String> = settings.keys().collect();
    let some = proptest::sample::subsequence(names, 0..=settings.len().min(5));
    let update = some.prop_flat_map(move |names| {
        let mut all: Vec<&String> = names.clone();
        for name in names {
            let group = name.rsplit_once('.').map(|(group, _)| format!("{group}."));
            let in_group = |name: &&String| group.as_ref().is_some_and(|it| name.starts_with(it));
            all.extend(settings.keys().filter(in_group));
        }
        let fields: Vec<BoxedStrategy<(String, Value)>> = all
            .into_iter()
            .filter(|name| !settings[*name].is_read_only)
            .map(|name| (Just(name.clone()), value(&settings[name])).boxed())
            .collect();
        fields.prop_map(|fields| paths::nest(fields.into_iter().collect()))
    });
    proptest::collection::vec(update, 1..6)
}

/// Returns the value of a setting in a document after `sent` was accepted for it.
fn expected(setting: &ServiceSetting, sent: &Value) -> Value {
    match (sent, setting.null) {
        (Value::Null, NullEffect::Default) => setting.default.clone(),
        (Value::String(secret), _) if setting.is_secret => digest(&reference(), secret).into(),
        _ => sent.clone(),
    }
}

#[test]
fn document_after_an_update_is_the_merge_and_a_rejected_update_changes_nothing() {
    let accepted = Cell::new(0);
    for catalog in CATALOGS {
        let settings = (catalog.settings)();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let run = runner.run(&updates(catalog), |updates| {
            let mut current = ServiceSettings::new(catalog);
            for update in updates {
                let before = current.document(&reference());
                let Ok(after) = current.update(&reference(), &update) else {
                    continue;
                };
                let mut merged = paths::flatten_any(&before);
                for (name, sent) in paths::flatten_any(&update) {
                    let value = expected(&settings[&name], &sent);
                    merged.insert(name, value);
                }
                let document = after.document(&reference());
                prop_assert_eq!(&paths::flatten_any(&document), &merged);
                // Written back, a document without read-only settings changes nothing.
                let mut again = merged.clone();
                again.retain(|name, value| {
                    let setting = &settings[name];
                    let is_rejected = value.is_null() && setting.null == NullEffect::Rejected;
                    !(setting.is_read_only || is_rejected)
                });
                if let Ok(same) = after.update(&reference(), &paths::nest(again)) {
                    prop_assert_eq!(same.document(&reference()), document);
                }
                current = after;
                accepted.set(accepted.get() + 1);
            }
            Ok(())
        });
        run.unwrap();
    }
    assert!(accepted.get() > 500, "{accepted:?}");
}

#[test]
fn names_and_defaults_of_all_catalogs_are_valid() {
    for catalog in CATALOGS {
        for (name, setting) in (catalog.settings)() {
            if !setting.default.is_null() {
                check_value(name, setting.value_type, &setting.default).unwrap();
            }
        }
        let document = ServiceSettings::new(catalog).document(&reference());
        let names: Vec<String> = paths::flatten_any(&document).into_keys().collect();
        assert!(names.iter().eq((catalog.settings)().keys()));
    }
}

#[test]
fn nested_updates_are_complete_and_have_known_keys() {
    let message = |change: Value| {
        let settings = ServiceSettings::new(&STORAGE);
        let after = settings.update(&reference(), change.as_object().unwrap());
        after.map_or_else(
            |error| error.message().into_owned(),
            |_| "accepted".to_owned(),
        )
    };
    for (change, expected) in [
        (json!({"features": {}}), "accepted"),
        (
            json!({"fileSizeLimit": 0, "features": {"s3Protocol": {"enabled": false}}}),
            "accepted",
        ),
        (
            json!({"features": {"s3Protocol": {}}}),
            "features.s3Protocol.enabled: Invalid input: expected boolean, received undefined",
        ),
        (
            json!({"features": {"s3Protocol": true}}),
            "features.s3Protocol: Invalid input: expected object, received boolean",
        ),
        (
            json!({"features": {"nonsense": {"enabled": true}}}),
            "features.nonsense: Unrecognized key",
        ),
        (
            json!({"features.s3Protocol.enabled": true}),
            "features.s3Protocol.enabled: Unrecognized key",
        ),
        (
            json!({"capabilities": {"list_v2": false}}),
            "capabilities.list_v2: Unrecognized key",
        ),
        (
            json!({"fileSizeLimit": 536_870_912_001_i64}),
            "fileSizeLimit: Too big: expected number to be <=536870912000",
        ),
        (
            json!({"external": {"upstreamTarget": "moon"}}),
            "external.upstreamTarget: Invalid option: expected one of main, canary",
        ),
    ] {
        assert_eq!(message(change.clone()), expected, "{change}");
    }
}
