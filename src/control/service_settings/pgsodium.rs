//! The root key of the extension pgsodium of a project's database. It is stored sealed, and used
//! once a database has the extension.

use std::{collections::BTreeMap, sync::LazyLock};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::{
    ServiceSettings,
    catalog::{EffectiveSettings, SettingsCatalog},
    get, seal_context,
    setting::{ServiceSetting, TextForm, ValueType},
    update,
};
use crate::{
    control::context::ControlContext,
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// Name of the only setting.
const ROOT_KEY: &str = "root_key";
/// Length of the key, in hexadecimal digits.
const ROOT_KEY_DIGITS: usize = 64;

/// The catalog of pgsodium.
pub static PGSODIUM: SettingsCatalog = SettingsCatalog {
    service: "pgsodium",
    settings: || &PGSODIUM_SETTINGS,
    ignored: &[],
    check,
};

static PGSODIUM_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let mut setting = ServiceSetting::new(ValueType::Text(TextForm::Any), Value::Null);
    setting.is_secret = true;
    setting.explanation = "Root key of pgsodium: 32 bytes in hex.".into();
    BTreeMap::from([(ROOT_KEY.to_owned(), setting)])
});

fn check(settings: &EffectiveSettings<'_>, _: &[&str]) -> Result<(), Error> {
    let key = settings.0.get(ROOT_KEY).and_then(Value::as_str);
    let is_valid = key.is_some_and(|key| {
        key.len() == ROOT_KEY_DIGITS && key.bytes().all(|it| it.is_ascii_hexdigit())
    });
    if is_valid {
        return Ok(());
    }
    Err(Error::Rejected(
        "Expected a 32 byte secret, hex-encoded (64 characters).".into(),
    ))
}

/// Returns the root key in clear. Generates it for a project that has none.
pub async fn root_key(context: &ControlContext, project: &Project) -> Result<SecretString, Error> {
    let settings = get(context, project, &PGSODIUM).await?;
    if let Some(key) = settings.secret(ROOT_KEY) {
        return Ok(key.clone());
    }
    let mut made = ServiceSettings::new(&PGSODIUM);
    let key = hex::encode(context.entropy.bytes::<32>());
    made.secrets.insert(ROOT_KEY.to_owned(), key.into());
    create(context, project, &made).await?;
    // Another request may have stored one meanwhile, which is then used.
    let settings = get(context, project, &PGSODIUM).await?;
    settings.secret(ROOT_KEY).cloned().ok_or(Error::NotFound)
}

async fn create(
    context: &ControlContext,
    project: &Project,
    made: &ServiceSettings,
) -> Result<(), Error> {
    let doing = "creating a root key";
    let key = made.secret(ROOT_KEY).map(ExposeSecret::expose_secret);
    let texts = serde_json::json!({ROOT_KEY: key}).to_string().into();
    let sealing = &context.settings.sealing;
    let place = seal_context(project.id, &PGSODIUM);
    let sealed = sealing.seal(&context.entropy, &place, &texts)?;
    let sql = "insert into service_settings (project_id, service, settings, secrets, generation) \
               select id, $2, '{}', $3, 1 from projects where id = $1 and desired <> 'removed' \
               on conflict do nothing returning 1";
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&project.id.0, &PGSODIUM.service, &sealed];
    context.db.query(sql, &parameters).await.context(doing)?;
    Ok(())
}

/// Replaces the root key. Values that were encrypted with the previous one become unreadable.
pub async fn set_root_key(
    context: &ControlContext,
    project: &Project,
    key: &str,
    audit: &Recorder,
) -> Result<(), Error> {
    let mut change = Map::new();
    change.insert(ROOT_KEY.to_owned(), key.into());
    update(context, project, &PGSODIUM, &change, audit).await?;
    Ok(())
}
