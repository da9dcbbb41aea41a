//! All tools, and those that a caller may use.

use std::sync::LazyLock;

use super::{
    arguments::Values,
    named_calls, named_tools, operation_tools,
    selection::Selection,
    tool::{Tool, ToolContext, ToolError},
};
use crate::platform::access::{User, may_use};

/// Every tool: the named ones, then one for each operation.
static ALL: LazyLock<Vec<Tool>> =
    LazyLock::new(|| named_tools::all().chain(operation_tools::all()).collect());

/// Returns every tool.
pub(super) fn all() -> &'static [Tool] {
    &ALL
}

/// Returns the tools of a selection that the credential of the user permits.
pub(super) fn permitted<'a>(
    selection: &'a Selection,
    user: &'a User,
) -> impl Iterator<Item = &'static Tool> + 'a {
    let may_call = |tool: &&Tool| may_use(user, &tool.operation.access);
    all()
        .iter()
        .filter(|tool| tool.is_in(selection))
        .filter(may_call)
}

/// Calls a tool, and returns the text for the client.
pub(super) async fn call(
    tool: &Tool,
    context: &ToolContext,
    mut values: Values,
) -> Result<String, ToolError> {
    values.check(&tool.schema_in(&context.selection))?;
    if let Some(project) = &context.selection.project {
        if let Some(argument) = tool.project_argument {
            values
                .0
                .insert(argument.to_owned(), project.to_string().into());
        }
        if let Some(argument) = tool.branch_argument {
            named_calls::require_branch(context, project, values.text(argument)?).await?;
        }
    }
    let mut result = tool.run.run(context, &values).await?;
    if let Some(progress) = &context.progress {
        let following = progress.follow(&tool.name, context, &values, &mut result);
        following.await;
    }
    Ok(result.into_text(&context.api.entropy))
}
