//! Forwarding of requests to upstreams.

use gantry::{platform::tables::Table, proxy::service_proxy};
use gantry_node::kits::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    task::JoinSet,
};

use super::{Gate, once, read_head};

#[tokio::test]
async fn path_selects_the_service() {
    let gate = Gate::new().await;
    let cases = [
        ("/rest/v1/todos?select=*", "/base/todos?select=*"),
        ("/auth/v1/token", "/base/token"),
        ("/storage/v1", "/base"),
        ("/realtime/v1/%C3%A4", "/base/%C3%A4"),
    ];
    for (path, target) in cases {
        assert_eq!(gate.get(path).await.json()["target"], target);
    }
    let missing = gate.get("/functions/v1/hello").await;
    assert_eq!(missing.status, 503);
    let message = missing.message();
    assert!(
        message.contains("--upstream functions=http://HOST:PORT")
            && message.contains("`gantry upstream set`"),
        "{message}"
    );
    assert!(missing.head.contains("content-type: application/json"));
    for path in ["/", "/rest/v2/", "/rest", "/graphql/v1"] {
        assert_eq!(gate.get(path).await.status, 404, "{path}");
    }
    let (address, _service) = once(async |mut stream| {
        assert!(
            read_head(&mut stream)
                .await
                .starts_with("GET /hello HTTP/1.1\r\n")
        );
        stream
            .write_all(b"HTTP/1.1 418 I am a teapot\r\ncontent-length: 2\r\n\r\nhi")
            .await
            .unwrap();
    })
    .await;
    gate.point(Service::Functions, address).await;
    let answer = gate.get("/functions/v1/hello").await;
    assert_eq!(
        (answer.status, &answer.body[..]),
        (418, &b"hi"[..]),
        "one project may have its own"
    );
}

#[tokio::test]
async fn upstream_receives_forwarding_headers_of_the_proxy_only() {
    let gate = Gate::new().await;
    let host = gate.host();
    let mut client = gate.client().await;
    let sent = "Connection: close, X-Hidden\r\nX-Hidden: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: x\r\n\
                Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Ssl: on\r\nX-Real-IP: 1.2.3.4\r\n\
                X-Project-Ref: evil\r\nauthorization: Bearer t\r\napikey: k\r\nCookie: a=b";
    client
        .send(&format!(
            "GET /rest/v1/ HTTP/1.1\r\nHost: {host}:8443\r\n{sent}\r\n\r\n"
        ))
        .await;
    let answer = client.answer().await;
    let expected = json!({
        "host": gate.echo.address.to_string(), "x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "x-forwarded-host": host,
        "x-forwarded-proto": "https", "x-forwarded-prefix": "/rest/v1", "x-project-ref": gate.project.as_str(),
        "authorization": "Bearer t", "apikey": "k", "cookie": "a=b",
    });
    assert_eq!(answer.json()["headers"], expected);
    assert!(
        answer.head.contains("x-kept: yes") && !answer.head.contains("keep-alive"),
        "{}",
        answer.head
    );
}

#[tokio::test]
async fn headers_with_underscores_are_dropped_by_default() {
    let sent = "X_Project_Ref: evil\r\nX_Forwarded_For: 1.2.3.4\r\nx_real_ip: 1.2.3.4\r\nX_Custom: 1\r\nX-Forwarded_Host: evil\r\n";
    for underscore_headers in [false, true] {
        let gate = Gate::with(
            |_| None,
            service_proxy::Options {
                underscore_headers,
                ..service_proxy::Options::default()
            },
        )
        .await;
        let host = gate.host();
        let mut client = gate.client().await;
        client
            .send(&format!(
                "GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n{sent}\r\n"
            ))
            .await;
        let answer = client.answer().await;
        let seen = answer.json()["headers"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| name.contains('_'))
            .cloned()
            .collect::<Vec<_>>();
        let allowed: &[&str] = if underscore_headers {
            &["x_custom"]
        } else {
            &[]
        };
        assert_eq!(seen, allowed);
        assert_eq!(
            answer.saw("x-project-ref").as_deref(),
            Some(gate.project.as_str())
        );
    }
}

#[tokio::test]
async fn cookies_of_http_2_reach_a_service_as_one_field() {
    let gate = Gate::new().await;
    let (lines, mut heard) = mpsc::channel(1);
    let (address, _service) = once(async move |mut stream| {
        lines.send(read_head(&mut stream).await).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    gate.point(Service::Functions, address).await;
    let io = TokioIo::new(gate.connect(&gate.host(), &["h2"]).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let request = hyper::Request::builder().uri(format!("https://{}/functions/v1/", gate.host()));
    let request = ["a=1", "b=2", "c=3; d=4"]
        .iter()
        .fold(request, |request, crumb| request.header("cookie", *crumb));
    let answer = sender
        .send_request(
            request
                .body(http_body_util::Empty::<bytes::Bytes>::new())
                .unwrap(),
        )
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let head = heard.recv().await.unwrap();
    let cookies: Vec<_> = head
        .lines()
        .filter(|line| line.to_lowercase().starts_with("cookie:"))
        .collect();
    assert_eq!(cookies, ["cookie: a=1; b=2; c=3; d=4"]);
}

#[tokio::test]
async fn request_trailers_are_dropped() {
    let gate = Gate::new().await;
    let (lines, mut heard) = mpsc::channel(1);
    let (address, _service) = once(async move |mut stream| {
        let head = read_head(&mut stream).await;
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n\r\n") {
            body.push(stream.read_u8().await.unwrap());
        }
        lines
            .send((head, String::from_utf8(body).unwrap()))
            .await
            .unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    gate.point(Service::Functions, address).await;
    let host = gate.host();
    let mut client = gate.client().await;
    let chunks = "3\r\nabc\r\n0\r\nX-Project-Ref: evil\r\n\r\n";
    client
        .send(&format!(
            "POST /functions/v1/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nTrailer: X-Project-Ref\r\n\r\n{chunks}"
        ))
        .await;
    assert_eq!(client.answer().await.status, 200);
    let (head, body) = heard.recv().await.unwrap();
    assert_eq!(body, "3\r\nabc\r\n0\r\n\r\n");
    assert!(!head.to_lowercase().contains("evil"), "{head}");
}

#[tokio::test]
async fn bodies_are_forwarded_over_a_kept_connection() {
    let gate = Gate::new().await;
    let host = gate.host();
    let mut client = gate.client().await;
    for bytes in [0, 1, 100_000, 3_000_000] {
        client
            .send(&format!(
                "PUT /storage/v1/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: {bytes}\r\n\r\n{}",
                "a".repeat(bytes)
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!(
            (
                answer.json()["bytes"].as_u64(),
                answer.json()["method"].as_str()
            ),
            (Some(bytes as u64), Some("PUT"))
        );
    }
    client.send(&format!("POST /rest/v1/ HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 100);
    client.send("ok").await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.json()["body"].as_str(), answer.saw("expect")),
        (Some("ok"), None)
    );
    client
        .send(&format!("HEAD /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        .await;
    let mut head = String::new();
    client
        .0
        .write_all(
            format!("GET /none HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await
        .unwrap();
    client.0.read_to_string(&mut head).await.unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("HTTP/1.1 404"),
        "{head}"
    );
}

#[tokio::test]
async fn upstream_connection_is_reused_unless_closed() {
    let gate = Gate::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    gate.point(Service::Functions, listener.local_addr().unwrap())
        .await;
    let (ended, mut ends) = mpsc::channel(1);
    let mut connections = JoinSet::new();
    connections.spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            // With `Content-Length`, chunked, and chunked with a trailer.
            let answers = [
                format!("content-length: 3\r\n\r\n{connection} 0"),
                format!("transfer-encoding: chunked\r\n\r\n3\r\n{connection} 1\r\n0\r\n\r\n"),
                format!("content-length: 3\r\n\r\n{connection} 2"),
            ];
            for answer in answers {
                read_head(&mut stream).await;
                stream
                    .write_all(format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes())
                    .await
                    .unwrap();
            }
            drop(stream);
            ended.send(()).await.unwrap();
        }
    });
    // The same client reuses the upstream connection of its worker thread.
    let mut client = gate.client().await;
    let host = gate.host();
    for connection in 0..2 {
        assert_eq!(
            client.get(&host, "/functions/v1/").await.body,
            format!("{connection} 0")
        );
        client
            .send(&format!(
                "GET /functions/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
            ))
            .await;
        let answer = client.chunks().await;
        assert!(answer.contains(&format!("{connection} 1")), "{answer}");
        assert_eq!(
            client.get(&host, "/functions/v1/").await.body,
            format!("{connection} 2")
        );
        ends.recv().await.unwrap();
        // After this response the proxy has processed the earlier close as well.
        client.get(&host, "/rest/v1/").await;
    }
}

#[tokio::test]
async fn failing_upstream_is_named_in_the_error() {
    let gate = Gate::new().await;
    let (gone, tasks) = once(async |stream| drop(stream)).await;
    drop(tasks);
    gate.point(Service::Rest, gone).await;
    let answer = gate.get("/rest/v1/").await;
    assert_eq!(
        (answer.status, answer.message().as_str()),
        (502, "The rest service does not answer")
    );
    for said in [
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ] {
        let (address, _tasks) = once(async move |mut stream| {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.unwrap();
        })
        .await;
        gate.point(Service::Auth, address).await;
        let answer = gate.get("/auth/v1/").await;
        assert_eq!(
            (answer.status, answer.message().as_str()),
            (502, "The auth service does not answer"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn project_is_served_under_each_name_until_deleted() {
    let gate = Gate::new().await;
    let activate = async |name: &str| {
        let call = gate
            .node
            .post(&gate.app.at("/vanity-subdomain/activate"))
            .as_(&gate.app.owner);
        call.json(&json!({"vanity_subdomain": name}))
            .send()
            .await
            .expect(201);
    };
    activate("shop").await;
    let mut client = gate.client_of("shop.example.test").await;
    let request = "GET /rest/v1/ HTTP/1.1\r\nHost: shop.example.test\r\n\r\n";
    client.send(request).await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.saw("x-project-ref")),
        (200, Some(gate.project.to_string()))
    );
    gate.node
        .delete(&gate.app.at("/vanity-subdomain"))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200);
    client.send(request).await;
    assert_eq!(
        client.answer().await.status,
        404,
        "the connection is older than the change"
    );
    assert!(gate.connect("shop.example.test", &[]).await.is_err());

    let sql = "update projects set desired = 'paused', status = 'INACTIVE' where ref = $1";
    gate.app
        .app
        .db
        .query(sql, &[&gate.project.as_str()])
        .await
        .unwrap();
    gate.node.app.set_subscribed(true);
    let paused = gate.get("/rest/v1/").await;
    assert_eq!(
        (paused.status, paused.message().as_str()),
        (503, "The project is paused; restore it to use its services")
    );
    gate.node
        .delete(&gate.app.at(""))
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200);
    gate.node.app.set_subscribed(true);
    assert!(gate.connect(&gate.host(), &[]).await.is_err());
}

#[tokio::test]
async fn new_project_is_served_immediately() {
    let gate = Gate::new().await;
    gate.connect(&gate.host(), &[]).await.unwrap();
    let name = format!(
        "{}.example.test",
        gate.app.stub(gate.app.home.id, "new").await
    );
    assert!(gate.connect(&name, &[]).await.is_err(), "nobody told");
    gate.node.app.table_changed(Table::Projects);
    gate.connect(&name, &[]).await.unwrap();
}

#[tokio::test]
async fn request_writes_one_log_row() {
    let gate = Gate::new().await;
    let log = &gate.node.app.service_proxy.log;
    let mut rows = Vec::new();
    gate.get("/rest/v1/todos?apikey=secret&select=*").await;
    gate.get("/nothing").await;
    log.wait_for_item().await;
    log.take(&mut rows);
    let [row, other] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!(
        (row.path.as_str(), row.search.as_deref()),
        ("/rest/v1/todos", Some("apikey=[redacted]&select=*"))
    );
    assert_eq!(
        (row.status.as_u16(), row.service, row.project.as_ref()),
        (200, Some(Service::Rest), Some(&gate.project))
    );
    assert_eq!(
        (row.client.to_string().as_str(), row.host.as_str()),
        ("127.0.0.1", gate.host().as_str())
    );
    assert_eq!((other.status.as_u16(), other.service), (404, None));
    assert_eq!(
        gate.counted("gantry_edge_requests_total{service=\"rest\",status=\"2xx\"}"),
        1
    );
    assert_eq!(gate.counted("gantry_edge_log_dropped_total"), 0);
    while log.add(row.clone()) {}
    gate.get("/nothing").await;
    assert_eq!(
        gate.counted("gantry_edge_log_dropped_total"),
        1,
        "no request waits for its log"
    );
}

#[tokio::test]
async fn request_of_a_client_that_leaves_is_logged_with_499() {
    let gate = Gate::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    gate.point(Service::Functions, listener.local_addr().unwrap())
        .await;
    let mut client = gate.client().await;
    let host = gate.host();
    client
        .send(&format!(
            "GET /functions/v1/slow HTTP/1.1\r\nHost: {host}\r\n\r\n"
        ))
        .await;
    let (mut upstream, _) = listener.accept().await.unwrap();
    read_head(&mut upstream).await;
    drop(client);
    // The proxy gives up the request of the upstream.
    assert_eq!(upstream.read(&mut [0; 1]).await.unwrap(), 0);
    // The record follows in the same drop.
    let mut rows = Vec::new();
    while rows.is_empty() {
        gate.node.app.service_proxy.log.take(&mut rows);
        tokio::task::yield_now().await;
    }
    assert_eq!(rows[0].status.as_u16(), 499);
    assert_eq!(rows[0].path, "/functions/v1/slow");
    assert_eq!(rows[0].service, Some(Service::Functions));
}
