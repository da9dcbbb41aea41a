//! Usage counts match the requests sent.

use serde_json::{Value, json};

use gantry::{platform::http::Transport, proxy::service_proxy};

use crate::{
    edge::Gate,
    support::{TestApp, client::Answer, dawn},
};

async fn usage(gate: &Gate, operation: &str) -> Answer {
    let path = format!(
        "/v1/projects/{}/analytics/endpoints/{operation}",
        gate.project
    );
    gate.node
        .get(&path)
        .as_(&gate.app.owner)
        .send()
        .await
        .expect(200)
}

#[tokio::test]
async fn usage_counts_match_requests() {
    let mut gate = Gate::new().await;
    gate.node.start();
    let mut made = [0_u64; 4];
    for (place, (path, times)) in [
        ("/auth/v1/user", 2),
        ("/realtime/v1/api", 1),
        ("/rest/v1/pets?select=*&apikey=secret", 70),
        ("/storage/v1/object/rest/x", 3),
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..times {
            gate.get(path).await;
            made[place] += 1;
        }
    }
    gate.node.app.analytics.close().await;
    for interval in ["15min", "30min", "1hr", "3hr", "1day", "3day", "7day"] {
        let answer = usage(&gate, &format!("usage.api-counts?interval={interval}"))
            .await
            .json();
        let total = |name: &str| {
            answer["result"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row[name].as_u64().unwrap())
                .sum::<u64>()
        };
        let names = [
            "total_auth_requests",
            "total_realtime_requests",
            "total_rest_requests",
            "total_storage_requests",
        ];
        assert_eq!(names.map(total), made, "{interval}");
    }
    let answer = usage(&gate, "usage.api-requests-count").await.json();
    assert_eq!(answer["result"], json!([{ "count": 76 }]));
    let sql = "select log_attributes['request.search'] as search, count() as n from logs where source = 'edge_logs' \
               and log_attributes['request.search'] != '' group by search";
    let found = super::ask(&gate.node, &gate.app.owner, &gate.project, sql, dawn()).await;
    assert_eq!(
        found,
        [json!({ "search": "?select=*&apikey=[redacted]", "n": 70 })],
        "what lets somebody in is not kept"
    );
}

#[tokio::test]
async fn address_and_country_of_a_client_are_logged_only_from_trusted_proxies() {
    let proxied = Transport {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Transport::default()
    };
    for (transport, logged) in [
        (proxied, json!({ "client": "192.0.2.7", "country": "DE" })),
        (
            Transport::default(),
            json!({ "client": "127.0.0.1", "country": "" }),
        ),
    ] {
        let mut gate = Gate::over(transport, |_| None, service_proxy::Options::default()).await;
        gate.node.start();
        let mut client = gate.client().await;
        let host = gate.host();
        client
            .send(&format!(
                "GET /rest/v1/pets HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 192.0.2.7\r\nCF-IPCountry: de\r\n\r\n"
            ))
            .await;
        client.answer().await;
        gate.node.app.analytics.close().await;
        let sql = "select log_attributes['request.headers.cf_connecting_ip'] as client, \
                   log_attributes['request.cf.country'] as country from logs where source = 'edge_logs'";
        let question = super::question(&gate.project, "logs", sql, dawn());
        let answer = gate
            .node
            .get(&question)
            .as_(&gate.app.owner)
            .header("x-forwarded-proto", "https")
            .send()
            .await
            .expect(200);
        assert_eq!(super::rows(&answer), [logged]);
    }
}

#[tokio::test]
async fn usage_of_idle_project_is_zero() {
    let app = TestApp::new().await;
    let answer = app
        .get(&app.at("/endpoints/usage.api-counts?interval=7day"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    let zeros = |day: u32| {
        json!({
            "timestamp": format!("2026-11-{day}T00:00:00Z"), "total_auth_requests": 0, "total_realtime_requests": 0,
            "total_rest_requests": 0, "total_storage_requests": 0,
        })
    };
    assert_eq!(
        answer["result"],
        Value::Array((15..=21).map(zeros).collect())
    );
    app.get(&app.at("/endpoints/usage.api-counts?interval=2day"))
        .as_(&app.owner)
        .send()
        .await
        .expect(400);
    let path =
        app.at("/analytics/endpoints/functions.combined-stats?interval=1hr&function_id=it's");
    let stats = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            stats["result"].as_array().unwrap().len(),
            &stats["result"][0]["requests_count"]
        ),
        (60, &json!(0))
    );
}
