//! Copies of functions between a project and its branches.

use super::{
    deploy::{blocking, check_node},
    sources::VersionFolder,
    versions::{self, FunctionRecord, NewFunctionVersion, list},
};
use crate::{
    control::context::ControlContext,
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// Which functions of the source are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyScope {
    /// All. Changes of the destination are overwritten.
    All,
    /// Those that were changed since they were copied to the source.
    Changed,
}

/// Returns whether a live version is copied over the destination's live version.
fn is_due(scope: CopyScope, source: &FunctionRecord, destination: Option<&FunctionRecord>) -> bool {
    let is_same = destination.is_some_and(|destination| {
        destination.copied_from == Some(source.deployment)
            || source.copied_from == Some(destination.deployment)
    });
    let is_unchanged = source.copied_from.is_some();
    let is_unneeded = scope == CopyScope::Changed && is_unchanged;
    !is_same && !is_unneeded
}

/// Copies live functions to another project, where they become live. Other functions of the
/// destination remain. A function that is there already is not copied again, so that an
/// interrupted call can be repeated. Returns the slugs of the copied functions.
///
/// The sources are copied as they were uploaded. Packages are fetched by the first start.
///
/// Errors: [`Error::Unavailable`] if another node has the files of one of the projects,
/// [`Error::Conflict`] if a function is deployed at the same time.
pub async fn copy(
    context: &ControlContext,
    source: &Project,
    destination: &Project,
    scope: CopyScope,
) -> Result<Vec<String>, Error> {
    let records = list(context, source.id).await?;
    if records.is_empty() {
        return Ok(Vec::new());
    }
    check_node(context, source).await?;
    check_node(context, destination).await?;
    let present = list(context, destination.id).await?;
    let mut copied = Vec::new();
    for record in records {
        let there = present.iter().find(|there| there.slug == record.slug);
        if is_due(scope, &record, there) {
            copied.push(record.slug.clone());
            copy_one(context, source, destination, record).await?;
        }
    }
    Ok(copied)
}

async fn copy_one(
    context: &ControlContext,
    source: &Project,
    destination: &Project,
    record: FunctionRecord,
) -> Result<(), Error> {
    let slug = record.slug.parse().context("copying a function")?;
    let base = versions::base(context, destination.id, &slug).await?;
    let deployment = context.entropy.uuid();
    let folder = |project: &Project, deployment| {
        VersionFolder::of(&context.home, &project.reference, deployment)
    };
    let (from, to) = (
        folder(source, record.deployment),
        folder(destination, deployment),
    );
    let written = to.clone();
    blocking(move || {
        let (sources, bundle) = (from.read()?, from.read_bundle()?);
        written.write(&sources, bundle.as_deref())
    })
    .await?;
    let new = NewFunctionVersion {
        id: base.id_or(context.entropy.uuid()),
        slug,
        deployment,
        name: record.name,
        verify_jwt: record.verify_jwt,
        entrypoint: record.entrypoint,
        import_map: record.import_map,
        bundle_sha256: record.bundle_sha256,
        copied_from: Some(record.deployment),
        live: true,
    };
    let published = versions::publish(context, destination, &base, new, None).await;
    if published.is_err() {
        // Removed later otherwise, with other files without a row.
        let _ = blocking(move || to.remove()).await;
    }
    published.map(drop)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;

    fn record(deployment: u128, copied_from: Option<u128>) -> FunctionRecord {
        FunctionRecord {
            id: Uuid::nil(),
            slug: "hello".to_owned(),
            name: "hello".to_owned(),
            version: 1,
            deployment: Uuid::from_u128(deployment),
            verify_jwt: true,
            entrypoint: "index.ts".to_owned(),
            import_map: None,
            bundle_sha256: None,
            copied_from: copied_from.map(Uuid::from_u128),
            created_at: DateTime::UNIX_EPOCH,
            updated_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_functions_that_differ_are_copied() {
        use CopyScope::{All, Changed};
        for (source, destination, all, changed, case) in [
            ((1, None), None, true, true, "new"),
            ((1, None), Some((2, Some(1))), false, false, "copied before"),
            (
                (2, Some(1)),
                Some((1, None)),
                false,
                false,
                "copy of the destination",
            ),
            (
                (2, Some(1)),
                Some((3, None)),
                true,
                false,
                "unchanged copy of an older version",
            ),
            (
                (4, None),
                Some((1, None)),
                true,
                true,
                "changed on the branch",
            ),
            (
                (2, Some(1)),
                None,
                true,
                false,
                "unchanged copy of a deleted one",
            ),
        ] {
            let source = record(source.0, source.1);
            let destination = destination.map(|(deployment, from)| record(deployment, from));
            let due = |scope| is_due(scope, &source, destination.as_ref());
            assert_eq!((due(All), due(Changed)), (all, changed), "{case}");
        }
    }
}
