//! Limits on certificate orders.

use chrono::TimeDelta;
use gantry::control::domains::hostnames::hostname_reconciler;
use serde_json::json;

use super::orders::{HOST, Town};

#[tokio::test]
async fn orders_are_limited_and_need_verification() {
    let town = Town::new(false).await;
    town.ask("/initialize").await;
    for _ in 0..12 {
        hostname_reconciler::pass(&town.node.app).await.unwrap();
        town.app.advance(10 * 60);
    }
    assert_eq!(
        town.count("acme_begun").await,
        0,
        "DNS did not say whose it is"
    );
    town.node
        .delete(&town.app.at("/custom-hostname"))
        .as_(&town.app.owner)
        .send()
        .await
        .expect(200);
    let db = &town.app.app.db;
    let organization = town.app.home.id.0;
    for (host, organization, count, why) in [
        (
            Some(HOST),
            None,
            4,
            "as many certificates were asked for this hostname as may be in an hour",
        ),
        (
            None,
            Some(organization),
            25,
            "the organization has asked for as many certificates as it may in three hours",
        ),
        (
            None,
            None,
            250,
            "this server has asked for as many certificates as its authority allows",
        ),
    ] {
        town.prove().await;
        let at = town.app.clock.now() - TimeDelta::minutes(5);
        let sql = "insert into acme_begun (at, host, organization_id) select $1, $2, $3 from generate_series(1, $4::int)";
        db.query(sql, &[&at, &host, &organization, &count])
            .await
            .unwrap();
        hostname_reconciler::pass(&town.node.app).await.unwrap();
        let told = town.ask("").await;
        let message = told["data"]["result"]["ssl"]["validation_errors"][0]["message"]
            .as_str()
            .unwrap();
        assert_eq!(
            (message, &told["status"]),
            (
                format!("{why}; it is tried again by itself").as_str(),
                &json!("3_challenge_verified")
            )
        );
        assert_eq!(
            (
                town.count("acme_begun").await,
                town.count("acme_orders").await
            ),
            (i64::from(count), 0)
        );
        town.node
            .delete(&town.app.at("/custom-hostname"))
            .as_(&town.app.owner)
            .send()
            .await
            .expect(200);
        db.query("delete from acme_begun", &[]).await.unwrap();
        town.app.advance(60);
    }
}
