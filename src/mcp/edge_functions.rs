//! Source files of Edge Functions in `multipart/form-data`, as the API takes and returns them.

use bytes::Bytes;
use http::{Request, header};
use serde_json::{Value, json};

use super::{
    arguments::{ArgumentError, Values},
    client::encoded,
    tool::{ToolContext, ToolError, ToolResult},
};
use crate::platform::{
    error::Context,
    http::{Body, multipart},
};

const DOING: &str = "calling an operation for a tool";
const MULTIPART: &str = "multipart/form-data";

/// Returns a function with its source files.
pub(super) async fn get(context: &ToolContext, values: &Values) -> Result<ToolResult, ToolError> {
    let path = path(values, values.text("function_slug")?)?;
    let mut function = context.client.get(&path).await?;
    let request = Request::get(format!("{path}/body"))
        .header(header::ACCEPT, MULTIPART)
        .body(Body::empty());
    let (headers, body) = context.client.send(request.context(DOING)?).await?;
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let boundary = multipart::boundary(content_type)?;
    let parts = multipart::parse(&boundary, &body)?;
    let files = parts
        .into_iter()
        .filter_map(|part| Some((part.file_name?, part.content)));
    let file = |(name, content): (String, Bytes)| json!({"name": name, "content": String::from_utf8_lossy(&content)});
    function["files"] = files.map(file).collect();
    Ok(ToolResult::Value(function))
}

/// Deploys a function from source files.
pub(super) async fn deploy(
    context: &ToolContext,
    values: &Values,
) -> Result<ToolResult, ToolError> {
    let slug = values.text("name")?;
    let files = values.0.get("files").and_then(Value::as_array);
    let files = files.filter(|files| !files.is_empty());
    let expected = || ArgumentError("files: expected at least one file".to_owned());
    let files = files.ok_or_else(expected)?;
    let mut metadata = json!({
        "name": slug,
        "entrypoint_path": values.optional_text("entrypoint_path")?.unwrap_or("index.ts"),
        "verify_jwt": values.0.get("verify_jwt").and_then(Value::as_bool).unwrap_or(true),
    });
    if let Some(import_map) = values.optional_text("import_map_path")? {
        metadata["import_map_path"] = import_map.into();
    }
    let boundary = format!("gantry-{}", context.api.entropy.uuid().simple());
    let mut body = part(&boundary, "metadata", None, &metadata.to_string());
    for file in files {
        let text = |key| file.get(key).and_then(Value::as_str).ok_or_else(expected);
        let name = text("name")?;
        if name.contains(['"', '\r', '\n']) {
            return Err(ArgumentError(format!("files: {name:?} is no name of a file")).into());
        }
        body += &part(&boundary, "file", Some(name), text("content")?);
    }
    body.extend(["--", &boundary, "--\r\n"]);
    let project = encoded(values.text("project_id")?);
    let slug = encoded(slug);
    let request = Request::post(format!(
        "/v1/projects/{project}/functions/deploy?slug={slug}"
    ))
    .header(
        header::CONTENT_TYPE,
        format!("{MULTIPART}; boundary={boundary}"),
    )
    .body(Body::from(Bytes::from(body)));
    let (_, response) = context.client.send(request.context(DOING)?).await?;
    Ok(ToolResult::Value(
        serde_json::from_slice(&response).context(DOING)?,
    ))
}

fn path(values: &Values, slug: &str) -> Result<String, ToolError> {
    let project = encoded(values.text("project_id")?);
    Ok(format!(
        "/v1/projects/{project}/functions/{}",
        encoded(slug)
    ))
}

fn part(boundary: &str, name: &str, file: Option<&str>, content: &str) -> String {
    let file = file
        .map(|file| format!("; filename=\"{file}\""))
        .unwrap_or_default();
    format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{content}\r\n"
    )
}
