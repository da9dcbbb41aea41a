//! The operation that serves the protocol.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use serde_json::json;

use super::{
    client::OperationClient,
    selection::{McpQuery, Selection},
    server::McpServer,
    tool::ToolContext,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::{Access, User},
        audit::client_name::ClientName,
        error::Error,
        http::{
            Body, Call, Endpoint, Input, Output, Query, Response, Tag, Verb,
            client_kind::InternalClient, mount, operation_doc::OperationDoc, output,
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&MCP, &STREAM, &SESSION];

/// Largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

static MCP: Endpoint = Endpoint {
    id: "gantry-mcp",
    summary: "Serve tools and resources to agents by the Model Context Protocol (Streamable HTTP)",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/mcp",
    aliases: &[],
    access: Access::Credential,
    limit: &STANDARD,
    handler: || {
        mount(serve)
            .calls_operations()
            .sample(r#"{"jsonrpc": "2.0", "id": 1, "method": "ping"}"#)
    },
};

static STREAM: Endpoint = Endpoint {
    id: "gantry-mcp-stream",
    summary: "Reject a stream of messages outside of responses, which this server does not send",
    method: Verb::Get,
    handler: || mount(reject),
    ..MCP
};

static SESSION: Endpoint = Endpoint {
    id: "gantry-mcp-session",
    summary: "Reject the end of a session, which this server does not have",
    method: Verb::Delete,
    handler: || mount(reject).read_only(),
    ..MCP
};

/// Clients try these methods, and continue after a 405 (Streamable HTTP).
async fn reject() -> Result<ProtocolResponse, Error> {
    let text = "this server has no sessions and no stream outside of responses; send POST requests";
    let mut response = output::json(StatusCode::METHOD_NOT_ALLOWED, &json!({ "message": text }));
    let post = HeaderValue::from_static("POST");
    response.headers_mut().insert(header::ALLOW, post);
    Ok(ProtocolResponse(response))
}

/// The message of a client, with its header fields.
struct Message {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl Input for Message {
    fn describe(described: &mut OperationDoc) {
        described.body_schema::<serde_json::Map<String, serde_json::Value>>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            uri: call.uri().clone(),
            headers: call.headers().clone(),
            body: call.body_within(MESSAGE_BYTES_MAX).await?,
        })
    }
}

/// A response of the protocol: JSON, a stream of events, or nothing.
struct ProtocolResponse(Response);

impl Output for ProtocolResponse {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        self.0
    }
}

async fn serve(
    api: ApiContext,
    user: User,
    client: InternalClient,
    Query(query): Query<McpQuery>,
    message: Message,
) -> Result<ProtocolResponse, Error> {
    // Requests of later versions of the protocol state the name of the program themselves.
    let user_agent = message.headers.get(header::USER_AGENT);
    let program = user_agent
        .and_then(|value| value.to_str().ok())
        .and_then(ClientName::new);
    let server = McpServer {
        context: ToolContext {
            client: OperationClient::new(client.named(program)),
            api,
            selection: Selection::new(&query)?,
            progress: None,
        },
        user: Arc::new(user),
    };
    // The server is authenticated by tokens, which a page of another origin does not have. Names of
    // hosts are checked by proxies.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MESSAGE_BYTES_MAX)
        .disable_allowed_hosts();
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(server.clone()), sessions, config);
    let mut request = Request::new(Full::new(message.body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = message.uri;
    *request.headers_mut() = message.headers;
    // HTTP/2 has none.
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().entry(header::HOST).or_insert(host);
    let (head, body) = service.handle(request).await.into_parts();
    let media_type = head.headers.get(header::CONTENT_TYPE);
    let is_text = media_type.is_none_or(|it| it.as_bytes().starts_with(b"text/plain"));
    let is_rejected = head.status.is_client_error() || head.status.is_server_error();
    if is_text && is_rejected {
        let Ok(text) = body.collect().await;
        let text = String::from_utf8_lossy(&text.to_bytes()).into_owned();
        return Ok(ProtocolResponse(output::json(
            head.status,
            &json!({ "message": text }),
        )));
    }
    let body_error = |never: Infallible| -> std::io::Error { match never {} };
    let mut response = Response::from_parts(head, Body::new(body.map_err(body_error)));
    let media_type = response.headers_mut().get_mut(header::CONTENT_TYPE);
    if let Some(media_type) = media_type.filter(|it| *it == "application/json") {
        *media_type = HeaderValue::from_static("application/json; charset=utf-8");
    }
    Ok(ProtocolResponse(response))
}
