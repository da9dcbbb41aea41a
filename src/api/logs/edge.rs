//! Logs of the service proxy: `edge_logs`, and `function_edge_logs` for functions.

use gantry_logs::event::{Attributes, Event, Source};
use gantry_node::kits::Service;

use super::{
    analytics::ShutdownSignal,
    queue,
    requests::{Request, number, text},
};
use crate::{
    api::context::ApiContext,
    proxy::service_proxy::log::{self, Row},
};

/// Appends rows until the proxy has stopped and the queue is empty. Runs once per process.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let mut batch = Vec::new();
    while queue::next(&context.service_proxy.log, &mut batch, &mut shutdown).await {
        for row in &batch {
            log::log_row(row);
        }
        context.service_proxy.project_requests.add(&batch);
        // Requests that matched no project belong to no log.
        let rows = batch
            .drain(..)
            .filter_map(|row| Some((row.project.clone()?, row)));
        context
            .analytics
            .keep_all(&queue::by_project(rows), event, &shutdown)
            .await;
    }
}

/// Returns the log line of a request.
fn event(row: &Row) -> Event {
    let request = Request {
        method: &row.method,
        scheme: "https",
        host: &row.host,
        path: &row.path,
        search: row.search.as_deref(),
        version: Some(row.version),
        client: row.client,
        user_agent: row.user_agent.as_deref(),
        status: row.status,
        took_millis: row.took_millis,
    };
    let mut all = Attributes::default();
    let identifier = row
        .project
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    text(&mut all, "identifier", identifier.clone());
    let line = request.describe(&mut all);
    for (key, value) in [
        ("request.headers.referer", &row.referer),
        ("request.headers.x_client_info", &row.client_info),
    ] {
        if let Some(value) = value {
            text(&mut all, key, value);
        }
    }
    let response = &row.response;
    for (key, value) in [
        ("request.cf.country", &row.country),
        ("request.headers.cf_ipcountry", &row.country),
        ("response.headers.cf_cache_status", &response.cache_status),
        ("response.headers.content_type", &response.content_type),
    ] {
        if let Some(value) = value {
            text(&mut all, key, value);
        }
    }
    if let Some(length) = response.content_length {
        number(&mut all, "response.headers.content_length", length);
    }
    let source = if row.service == Some(Service::Functions) {
        if let Some(function) = &row.function {
            let (id, version) = (function.id, function.version);
            text(&mut all, "function_id", id.to_string());
            text(
                &mut all,
                "deployment_id",
                format!("{identifier}_{id}_{version}"),
            );
            text(&mut all, "version", version.to_string());
            text(&mut all, "slug", function.slug.clone());
        } else {
            // An upstream of the operator runs it, and only its name is known.
            text(&mut all, "function_id", slug(&row.path));
        }
        text(&mut all, "project_ref", identifier);
        text(&mut all, "request.pathname", &row.path);
        number(
            &mut all,
            "execution_time_ms",
            i64::try_from(row.took_millis).unwrap_or(i64::MAX),
        );
        Source::FunctionEdge
    } else {
        Source::Edge
    };
    Event::new(
        row.id.to_string(),
        row.at.timestamp_micros(),
        source,
        line,
        all,
    )
}

/// Returns the name of a function: `hello` of `/functions/v1/hello/there`.
fn slug(path: &str) -> &str {
    path.strip_prefix("/functions/v1/")
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hyper::{Method, StatusCode, Version};
    use uuid::Uuid;

    use super::*;
    use crate::proxy::service_proxy::log::{CalledFunction, ResponseFields};

    #[test]
    fn a_request_becomes_a_line_with_the_contracts_keys() {
        let row = Row {
            id: Uuid::nil(),
            at: "2026-11-21T09:15:03Z".parse().unwrap(),
            project: Some("abcdefghijklmnopqrst".parse().unwrap()),
            service: Some(Service::Rest),
            method: Method::GET,
            host: "abc.example.test".into(),
            path: "/rest/v1/pets".to_owned(),
            search: Some("select=*".to_owned()),
            version: Version::HTTP_2,
            client: "192.0.2.1".parse().unwrap(),
            user_agent: Some("curl/8".to_owned()),
            referer: None,
            client_info: Some("js/2".to_owned()),
            country: Some("DE".to_owned()),
            function: None,
            response: ResponseFields {
                content_type: Some("application/json".to_owned()),
                content_length: Some(17),
                cache_status: Some("HIT".to_owned()),
            },
            status: StatusCode::NOT_FOUND,
            took_millis: 12,
        };
        let line = event(&row);
        assert_eq!(
            (line.source, line.timestamp),
            (Source::Edge, 1_795_252_503_000_000)
        );
        assert_eq!(
            line.message,
            "GET | 404 | 192.0.2.1 | https://abc.example.test/rest/v1/pets?select=* | curl/8"
        );
        let all: Vec<_> = line
            .attributes
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let expected = [
            "identifier=abcdefghijklmnopqrst",
            "request.cf.country=DE",
            "request.cf.httpProtocol=HTTP/2.0",
            "request.headers.cf_connecting_ip=192.0.2.1",
            "request.headers.cf_ipcountry=DE",
            "request.headers.host=abc.example.test",
            "request.headers.user_agent=curl/8",
            "request.headers.x_client_info=js/2",
            "request.headers.x_forwarded_proto=https",
            "request.headers.x_real_ip=192.0.2.1",
            "request.host=abc.example.test",
            "request.method=GET",
            "request.path=/rest/v1/pets",
            "request.protocol=https:",
            "request.search=?select=*",
            "request.url=https://abc.example.test/rest/v1/pets?select=*",
            "response.headers.cf_cache_status=HIT",
            "response.headers.content_length=17",
            "response.headers.content_type=application/json",
            "response.origin_time=12",
            "response.status_code=404",
        ];
        assert_eq!(all, expected);
        let row = Row {
            service: Some(Service::Functions),
            path: "/functions/v1/hello/there".to_owned(),
            ..row
        };
        let line = event(&row);
        assert_eq!(
            (line.source, line.attributes.text("function_id")),
            (Source::FunctionEdge, Some("hello"))
        );
        let row = Row {
            function: Some(CalledFunction {
                id: Uuid::from_u128(1),
                slug: "hello".to_owned(),
                version: 3,
            }),
            ..row
        };
        let all = event(&row).attributes;
        let id = Uuid::from_u128(1).to_string();
        let deployment = format!("abcdefghijklmnopqrst_{id}_3");
        for (key, value) in [
            ("function_id", id.as_str()),
            ("deployment_id", deployment.as_str()),
            ("version", "3"),
            ("slug", "hello"),
        ] {
            assert_eq!(all.text(key), Some(value), "{key}");
        }
    }
}
