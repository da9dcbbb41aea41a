//! Download of a function's sources.

use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::SlugPath;
use crate::{
    api::context::ApiContext,
    control::services::functions::{
        self, FunctionRecord,
        eszip::{self, Bundle},
        sources::Sources,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        error::Error,
        http::{
            Call, Endpoint, Input, Output, Response, Tag, Verb, mount, operation_doc::OperationDoc,
            output::with_type,
        },
        rate_limits::STANDARD,
    },
};

pub(super) static BODY: Endpoint = Endpoint {
    id: "v1-get-a-function-body",
    summary: "Get the body of an Edge Function",
    tag: Tag::EdgeFunctions,
    method: Verb::Get,
    path: "/v1/projects/{ref}/functions/{function_slug}/body",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead),
    limit: &STANDARD,
    handler: || mount(body),
};

/// Whether the client accepts a body of several parts.
struct AcceptsForm(bool);

impl Input for AcceptsForm {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let mut accepted = call.headers().get_all(header::ACCEPT).iter();
        let form = |value: &HeaderValue| {
            value
                .to_str()
                .is_ok_and(|value| value.to_ascii_lowercase().contains("multipart/form-data"))
        };
        Ok(Self(accepted.any(form)))
    }
}

/// The sources of a function.
enum FunctionBody {
    /// One part for each file.
    Form { boundary: String, content: Vec<u8> },
    /// A bundle without compression.
    Bundle(bytes::Bytes),
}

impl Output for FunctionBody {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        match self {
            Self::Form { boundary, content } => {
                let mut response = with_type(StatusCode::OK, "multipart/form-data", content);
                let value = format!("multipart/form-data; boundary={boundary}");
                if let Ok(value) = HeaderValue::try_from(value) {
                    response.headers_mut().insert(header::CONTENT_TYPE, value);
                }
                response
            }
            Self::Bundle(bytes) => {
                with_type(StatusCode::OK, "application/vnd.denoland.eszip", bytes)
            }
        }
    }
}

async fn body(
    project: Project,
    SlugPath(slug): SlugPath,
    context: ApiContext,
    AcceptsForm(form): AcceptsForm,
) -> Result<FunctionBody, Error> {
    let record = functions::get(&context, project.id, &slug).await?;
    let record = record.ok_or(functions::NO_FUNCTION)?;
    let folder = functions::version_folder(&context, &project, &record).await?;
    let boundary = format!("gantry-{}", context.entropy.letters(24));
    let read = tokio::task::spawn_blocking(move || {
        if form {
            let content = format_form(&boundary, &record, &folder.read()?);
            return Ok(FunctionBody::Form { boundary, content });
        }
        let uploaded = folder.read_bundle()?;
        let unpacked = uploaded.and_then(|packed| eszip::decompress(&packed).ok());
        let bundle = match unpacked {
            Some(bundle) => bundle,
            None => Bundle::write(&folder.read()?),
        };
        Ok::<_, std::io::Error>(FunctionBody::Bundle(bundle))
    });
    let read = read
        .await
        .map_err(|error| Error::internal("reading a function", error))?;
    read.map_err(|error| Error::internal("reading a function", error))
}

/// Formats the files as parts, below the folder `source`, as they are named in other responses.
fn format_form(boundary: &str, record: &FunctionRecord, sources: &Sources) -> Vec<u8> {
    let entrypoint = format!("source/{}", record.entrypoint);
    let metadata = json!({ "deno2_entrypoint_path": entrypoint });
    let mut form = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\
         Content-Type: application/json\r\n\r\n{metadata}"
    )
    .into_bytes();
    for (path, content) in sources.iter() {
        let name = path.replace('"', "%22");
        let head = format!(
            "\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"source/{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        form.extend_from_slice(head.as_bytes());
        form.extend_from_slice(content);
    }
    form.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    form
}
