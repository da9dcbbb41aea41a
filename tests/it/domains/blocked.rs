//! Blocked hostnames, and the limit on hostnames of an organization.

use gantry::control::domains::hostnames::{blocked, hostname_reconciler};
use serde_json::json;

use super::hostnames::{HOST, Zone};

impl Zone {
    /// Blocks or unblocks a name, as `gantry hostname` does.
    async fn block(&self, name: &str, block: bool) {
        let audit = gantry::platform::audit::Recorder::operator(
            "test",
            &self.app.app.entropy,
            "gantry hostname block",
        );
        let (_, changed) = blocked::set(&self.app.app.db, name, block, &self.app.clock, audit)
            .await
            .unwrap();
        assert!(changed);
    }
}

#[tokio::test]
async fn blocked_hostname_is_not_served() {
    let zone = Zone::new().await;
    zone.block("Customer.test.", true).await;
    assert_eq!(
        blocked::list(&zone.app.app.db).await.unwrap(),
        ["customer.test"]
    );
    let refused = zone.mine("/initialize").await.expect(400).message();
    assert_eq!(
        refused,
        "The operator of this server does not serve api.customer.test."
    );
    zone.block("customer.test", false).await;
    zone.block("other-customer.test", true).await;
    zone.block("i.customer.test", true).await;
    zone.proven().await;
    zone.certify().await;
    zone.mine("/activate").await.expect(201);
    let served = async || {
        let published = gantry::control::domains::published(&zone.node.app)
            .await
            .unwrap();
        published.iter().any(|one| {
            one.hostname
                .as_ref()
                .is_some_and(|hostname| hostname.host == HOST)
        })
    };
    let status =
        async || zone.mine("").await.expect(200).json()["data"]["result"]["status"].clone();
    assert!(served().await);
    zone.block(HOST, true).await;
    assert_eq!((served().await, status().await), (false, json!("blocked")));
    // A blocked hostname is not checked, although it is misrouted now.
    zone.say("elsewhere.test", "x");
    zone.app.advance(24 * 3600);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    assert!(zone.mine("").await.json()["data"]["result"]["verification_errors"].is_null());
    zone.block(HOST, false).await;
    assert_eq!((served().await, status().await), (true, json!("active")));
}

#[tokio::test]
async fn hostnames_of_an_organization_are_limited() {
    let zone = Zone::new().await;
    for n in 0..100 {
        zone.app
            .stub(zone.app.home.id, &format!("sibling {n}"))
            .await;
    }
    let sql = "insert into custom_hostnames (project_id, id, host, state, not_before, created_at) \
               select id, gen_random_uuid(), ref || '.customer.test', 'initiated', now(), now() from projects where organization_id = $1 and ref <> $2";
    zone.app
        .app
        .db
        .query(sql, &[&zone.app.home.id.0, &zone.app.home.project.as_str()])
        .await
        .unwrap();
    let refused = zone.mine("/initialize").await.expect(400).message();
    assert!(
        refused.starts_with("The projects of an organization can have 100 custom hostnames."),
        "{refused}"
    );
    zone.ask(&zone.app.stranger, &zone.app.foreign.project, "/initialize")
        .await
        .expect(201);
    let sql = "delete from custom_hostnames where project_id = (select max(project_id) from custom_hostnames where host like '%.customer.test' and host <> $1)";
    zone.app.app.db.query(sql, &[&HOST]).await.unwrap();
    zone.mine("/initialize").await.expect(201);
}
