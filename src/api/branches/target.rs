//! The branch that a path names.

use crate::platform::{
    access::BranchKey,
    error::Error,
    http::{Call, Input, operation_doc::OperationDoc},
};

/// The `{branch_id_or_ref}` of a path. The guard has resolved it to the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BranchTarget(pub(super) BranchKey);

impl Input for BranchTarget {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let text = call.placeholder("branch_id_or_ref").unwrap_or_default();
        BranchKey::parse(text).map(Self).ok_or(Error::NotFound)
    }
}

/// The `{name}` of a branch. Names often contain slashes, which clients encode.
#[derive(Debug, Clone)]
pub(super) struct BranchName(pub(super) String);

impl Input for BranchName {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let text = call.placeholder("name").unwrap_or_default();
        // A form decodes alike, but for the plus sign.
        let form = format!("v={}", text.replace('+', "%2B").replace('&', "%26"));
        let decoded = form_urlencoded::parse(form.as_bytes()).next();
        let (_, decoded) = decoded.ok_or(Error::NotFound)?;
        if decoded.contains('\0') {
            return Err(Error::invalid("name", "contains a NUL character"));
        }
        Ok(Self(decoded.into_owned()))
    }
}

/// The `{run_id}` of an action run.
#[derive(Debug, Clone)]
pub(super) struct RunId(pub(super) String);

impl Input for RunId {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call.placeholder("run_id").unwrap_or_default();
        let valid = id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        if valid {
            Ok(Self(id.to_owned()))
        } else {
            Err(Error::invalid("run_id", "expected 32 hexadecimal digits"))
        }
    }
}
