//! Rejected connections and requests.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use gantry::platform::tables::Table;
use gantry_base::ids::ProjectRef;

use super::{Client, Gate, SHORTLY};
use crate::support::machine::PATIENCE;

#[tokio::test]
async fn unknown_server_name_gets_no_response() {
    let gate = Gate::new().await;
    let other = "a".repeat(20) + ".example.test";
    let beyond = format!("x.{}", gate.host());
    for name in [
        "example.test",
        "shop.example.test",
        &other,
        &beyond,
        "api.customer.test",
    ] {
        assert!(gate.connect(name, &[]).await.is_err(), "{name}");
    }
    gate.counts_to("gantry_edge_connections_total{outcome=\"unknown name\"}", 5)
        .await;
    // TLS sends no server name for an IP address.
    assert!(gate.connect("127.0.0.1", &[]).await.is_err());
    gate.counts_to("gantry_edge_connections_total{outcome=\"no name\"}", 1)
        .await;
    // Without a pending challenge, the ACME protocol is rejected.
    assert!(gate.connect(&gate.host(), &["acme-tls/1"]).await.is_err());
    let mut stream = TcpStream::connect(gate.https).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut said = Vec::new();
    // At most a TLS alert, however the connection ends.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut said))
        .await
        .unwrap();
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    gate.counts_to("gantry_edge_connections_total{outcome=\"malformed\"}", 1)
        .await;
    assert_eq!(gate.get("/rest/v1/").await.status, 200, "and all is well");
}

#[tokio::test]
async fn host_other_than_the_server_name_is_misdirected() {
    let gate = Gate::new().await;
    let sibling = gate.app.stub(gate.app.home.id, "sibling").await;
    gate.node.app.table_changed(Table::Projects);
    let host = gate.host();
    let other = format!("{sibling}.example.test");
    let cases = [
        (
            format!("GET /rest/v1/ HTTP/1.1\r\nHost: {other}\r\n\r\n"),
            421,
        ),
        (
            format!("GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n"),
            400,
        ),
        (
            format!("GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nHost: {other}\r\n\r\n"),
            400,
        ),
        ("GET /rest/v1/ HTTP/1.1\r\n\r\n".to_owned(), 400),
        (
            format!("GET http://{other}/rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            400,
        ),
        (
            format!("GET http://{host}/rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            200,
        ),
        (
            format!(
                "GET /rest/v1/ HTTP/1.1\r\nHost: {}:8443\r\n\r\n",
                host.to_uppercase()
            ),
            200,
        ),
        (
            format!("GET /rest/v1/../../auth/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            400,
        ),
        (
            format!("TRACE /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            405,
        ),
        (
            format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n"),
            405,
        ),
    ];
    for (text, status) in cases {
        let mut client = gate.client().await;
        client.send(&text).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{text}: {answer:?}");
        if [400, 421].contains(&status) {
            assert!(client.is_closed().await, "{text}");
        }
    }
}

#[tokio::test]
async fn ambiguous_request_is_rejected() {
    let gate = Gate::new().await;
    let host = gate.host();
    let smuggled = format!("GET /rest/v1/smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for [first, second] in [
        ["Content-Length: 6", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 6"],
    ] {
        let mut client = gate.client().await;
        client.send(&format!("POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{first}\r\n{second}\r\n\r\n0\r\n\r\n{smuggled}")).await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.message().as_str()),
            (400, "The request is malformed"),
            "{first}"
        );
        assert!(client.is_closed().await, "{first}");
    }
    for (bad, status) in [
        ("Content-Length: 1\r\nContent-Length: 2", 400),
        ("Content-Length: -1", 400),
        ("Transfer-Encoding: chunked, identity", 400),
        ("Transfer-Encoding: x", 400),
        ("Transfer-Encoding: gzip, chunked", 501),
        (
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
            501,
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            501,
        ),
        ("Bad Header: x", 400),
    ] {
        let mut client = gate.client().await;
        client
            .send(&format!(
                "POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{bad}\r\n\r\n0\r\n\r\n{smuggled}"
            ))
            .await;
        assert_eq!(client.answer().await.status, status, "{bad}");
        assert!(client.is_closed().await, "{bad}");
    }
}

#[tokio::test]
async fn malformed_chunk_returns_400() {
    let gate = Gate::new().await;
    let host = gate.host();
    // Before and after the request is forwarded.
    for chunks in [
        "zz\r\nabc\r\n",
        "-1\r\n",
        "3\r\nabcdef\r\n",
        "3\r\nabc\r\nzz\r\n",
        "11111111111111111\r\n",
    ] {
        let mut client = gate.client().await;
        client.send(&format!("POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}")).await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.message().as_str()),
            (400, "The request is malformed"),
            "{chunks}"
        );
        assert!(client.is_closed().await, "{chunks}");
    }
}

#[tokio::test]
async fn duplicate_credentials_and_path_traversal_are_rejected() {
    let gate = Gate::new().await;
    let host = gate.host();
    for (path, headers, status) in [
        (
            "/rest/v1/x",
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            400,
        ),
        (
            "/rest/v1/x",
            "Authorization: Bearer a\r\nauthorization: Bearer a\r\n",
            400,
        ),
        ("/rest/v1/x", "Authorization: Bearer a\r\n", 200),
        ("/rest/v1/..;/x", "", 400),
        ("/rest/v1/..%3b/x", "", 400),
        ("/rest/v1/..%5cx", "", 400),
        ("/rest/v1/..%5C..%5Cauth", "", 400),
        ("/rest/v1/..\\x", "", 400),
        ("/rest/v1/%2e%2E/x", "", 400),
        ("/rest/v1/..%2fx", "", 400),
        ("/rest/v1/%252e%252e%252fx", "", 400),
        ("/rest/v1/a;b=c", "", 200),
    ] {
        let mut client = gate.client().await;
        client
            .send(&format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.status, status, "{path} {headers}");
    }
}

#[tokio::test]
async fn connection_is_closed_after_a_chunked_body() {
    let gate = Gate::new().await;
    let host = gate.host();
    let mut client = gate.client().await;
    let next = format!("GET /rest/v1/next HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client
        .send(&format!(
            "GET /rest/v1/1 HTTP/1.1\r\nHost: {host}\r\n\r\n{next}"
        ))
        .await;
    assert_eq!(client.answer().await.json()["target"], "/base/1");
    assert_eq!(
        client.answer().await.json()["target"],
        "/base/next",
        "two in a row are fine"
    );
    client
        .send(&format!("POST /rest/v1/2 HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{next}"))
        .await;
    let answer = client.answer().await;
    assert_eq!(
        (
            answer.json()["body"].as_str(),
            answer.json()["target"].as_str()
        ),
        (Some("abc"), Some("/base/2"))
    );
    assert!(answer.head.contains("connection: close") && client.is_closed().await);
}

#[tokio::test]
async fn oversized_requests_are_rejected() {
    let gate = Gate::new().await;
    let host = gate.host();
    let mut client = gate.client().await;
    client
        .send(&format!(
            "GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n",
            "a".repeat(40_000)
        ))
        .await;
    assert_eq!(client.answer().await.status, 431);
    let mut client = gate.client().await;
    let many = (0..101).fold(String::new(), |all, n| all + &format!("X-{n}: y\r\n"));
    client
        .send(&format!(
            "GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{many}\r\n"
        ))
        .await;
    assert_eq!(client.answer().await.status, 431);
    let mut client = gate.client().await;
    client
        .send(&format!(
            "POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n",
            (32 << 20) + 1
        ))
        .await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.message().as_str()),
        (413, "request entity too large")
    );
    let mut client = gate.client().await;
    client
        .send(&format!(
            "POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        ))
        .await;
    let chunk = format!("100000\r\n{}\r\n", "a".repeat(1 << 20));
    for _ in 0..33 {
        client.send(&chunk).await;
    }
    assert_eq!(client.answer().await.status, 413);
}

#[tokio::test]
async fn client_that_sends_its_body_before_it_reads_gets_the_rejection() {
    let gate = Gate::new().await;
    let host = gate.host();
    let text = "a".repeat(1 << 20);
    for (field, chunk, end) in [
        ("Content-Length: 41943040", text.clone(), ""),
        (
            "Transfer-Encoding: chunked",
            format!("100000\r\n{text}\r\n"),
            "0\r\n\r\n",
        ),
    ] {
        let mut client = gate.client().await;
        let head = format!("POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{field}\r\n\r\n");
        client.send(&head).await;
        for _ in 0..40 {
            // Fails if the connection is closed.
            client.send_bytes(chunk.as_bytes()).await;
        }
        client.send(end).await;
        assert_eq!(client.answer().await.status, 413, "{field}");
    }
}

#[tokio::test]
async fn silent_client_is_disconnected() {
    let gate = Gate::new().await;
    let mut silent = TcpStream::connect(gate.https).await.unwrap();
    let mut half = TcpStream::connect(gate.https).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    for stream in [&mut silent, &mut half] {
        let ended = timeout(2 * SHORTLY + PATIENCE, stream.read(&mut [0; 1]))
            .await
            .unwrap();
        assert!(!matches!(ended, Ok(1..)));
    }
    gate.counts_to("gantry_edge_connections_total{outcome=\"late\"}", 2)
        .await;
}

/// Returns the response to a plain HTTP request, in lower case.
async fn plainly(address: SocketAddr, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut said = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut said))
        .await
        .unwrap()
        .unwrap();
    said.to_lowercase()
}

#[tokio::test]
async fn plain_http_redirects_to_https() {
    let gate = Gate::new().await;
    let ask = async |host: &str, path: &str| plainly(gate.http, host, path).await;
    let host = gate.host();
    let port = gate.https.port();
    let led = ask(&host, "/rest/v1/x?a=b").await;
    assert!(
        led.starts_with("http/1.1 308")
            && led.contains(&format!("location: https://{host}/rest/v1/x?a=b\r\n")),
        "{led}"
    );
    assert!(
        ask(&format!("{host}:80"), "/")
            .await
            .contains(&format!("location: https://{host}:{port}/\r\n"))
    );
    for (host, path) in [
        ("evil.test", "/"),
        ("example.test", "/.well-known/acme-challenge/x"),
        ("a@b", "/"),
    ] {
        let said = ask(host, path).await;
        assert!(
            said.starts_with("http/1.1 404") && !said.contains("location"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn over_http_2_the_same_rules_hold() {
    let gate = Gate::new().await;
    let ask = async |host: &str, uri: &str| {
        let stream = gate.connect(&gate.host(), &["h2"]).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io)
                .await
                .unwrap();
        let driver = tokio::spawn(connection);
        let mut request = hyper::Request::builder().uri(uri);
        if !host.is_empty() {
            request = request.header("host", host);
        }
        let response = sender
            .send_request(
                request
                    .body(http_body_util::Empty::<bytes::Bytes>::new())
                    .unwrap(),
            )
            .await
            .unwrap();
        let status = response.status().as_u16();
        assert!(
            ["connection", "keep-alive"]
                .iter()
                .all(|name| !response.headers().contains_key(*name))
        );
        driver.abort();
        status
    };
    let host = gate.host();
    assert_eq!(ask("", &format!("https://{host}/rest/v1/")).await, 200);
    assert_eq!(
        ask(&host, &format!("https://{host}:443/rest/v1/")).await,
        200
    );
    assert_eq!(
        ask("other.example.test", &format!("https://{host}/rest/v1/")).await,
        400
    );
    assert_eq!(ask("", "https://other.example.test/rest/v1/").await, 421);
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight() {
    let mut gate = Gate::new().await;
    let host = gate.host();
    let mut client: Client = gate.client().await;
    client.send(&format!("POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 100, "it has begun");
    let mut idle = gate.client().await;
    gate.node.app.service_proxy.stop();
    assert!(idle.is_closed().await);
    client.send("abcd").await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.json()["body"].as_str()),
        (200, Some("abcd"))
    );
    let stopped = async { while gate.tasks.join_next().await.is_some() {} };
    timeout(PATIENCE, stopped).await.unwrap();
    assert!(TcpStream::connect(gate.https).await.is_err());
}

#[tokio::test]
async fn on_demand_tls_check_accepts_own_names_only() {
    let gate = Gate::new().await;
    let db = &gate.app.app.db;
    let hostname = async |project: &ProjectRef, host: &str, state: &str| {
        let sql = "insert into custom_hostnames (project_id, id, host, state, not_before, created_at) \
                   select id, gen_random_uuid(), $2, $3, now(), now() from projects where ref = $1";
        db.query(sql, &[&project.as_str(), &host, &state])
            .await
            .unwrap();
    };
    let other = gate.app.stub(gate.app.home.id, "other").await;
    hostname(&gate.project, "api.customer.test", "active").await;
    hostname(&other, "new.customer.test", "certified").await;
    hostname(&gate.app.foreign.project, "wish.customer.test", "verified").await;
    gate.node.app.table_changed(Table::CustomHostnames);
    let ask = async |query: &str| {
        plainly(gate.ask, "localhost", &format!("/{query}")).await[9..12]
            .parse::<u16>()
            .unwrap()
    };
    for name in [
        &gate.host(),
        &gate.host().to_uppercase(),
        "api.customer.test",
    ] {
        assert_eq!(ask(&format!("?domain={name}")).await, 200, "{name}");
    }
    let nobody = "a".repeat(20);
    for query in [
        "?domain=new.customer.test",
        "?domain=wish.customer.test",
        "?domain=evil.test",
        &format!("?domain={nobody}.example.test"),
        &format!("?domain=x.{}", gate.host()),
        "?domain=example.test",
        "?domain=",
        "?domain=api.customer.test&domain=api.customer.test",
        "",
    ] {
        assert_eq!(ask(query).await, 404, "{query}");
    }
}
