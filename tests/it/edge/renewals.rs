//! Renewal windows suggested by the authority (RFC 9773).

use chrono::{DateTime, TimeDelta, Utc};
use gantry::control::domains::hostnames::hostname_reconciler;

use super::orders::Town;
use crate::support::{
    Node,
    suggestions::{Replacing, Suggestions},
};

/// Returns the stored schedule of the only certificate.
async fn written(
    town: &Town,
) -> (
    DateTime<Utc>,
    Option<DateTime<Utc>>,
    DateTime<Utc>,
    DateTime<Utc>,
) {
    let sql = "select renew_at, window_start, ask_at, not_after from hostname_certificates";
    let rows = town.app.app.db.query(sql, &[]).await.unwrap();
    (
        rows[0].get(0),
        rows[0].get(1),
        rows[0].get(2),
        rows[0].get(3),
    )
}

async fn certified(
    suggestions: &Suggestions,
    town: &Town,
    window: Option<(i64, i64)>,
) -> DateTime<Utc> {
    let now = town.app.clock.now();
    suggestions.conduct.lock().window =
        window.map(|(start, end)| (now + TimeDelta::days(start), now + TimeDelta::days(end)));
    town.prove().await;
    town.until(&town.node, "4_origin_setup_completed").await;
    now
}

fn in_six_hours(town: &Town, at: DateTime<Utc>) -> bool {
    (town.app.clock.now() + TimeDelta::hours(6) - at).abs() < TimeDelta::minutes(1)
}

async fn pass_after(town: &Town, node: &Node, hours: u32) {
    town.app.advance(hours * 3600);
    hostname_reconciler::pass(&node.app).await.unwrap();
}

/// Advances the clock by days until the certificate is renewed. Pebble rejects random requests,
/// which are retried.
async fn until_second(town: &Town) {
    for _ in 0..10 {
        pass_after(town, &town.node, 20).await;
        if town.pebble.said("Issued certificate") == 2 {
            return;
        }
    }
    panic!(
        "{} certificates: {:?}",
        town.pebble.said("Issued certificate"),
        written(town).await
    );
}

#[tokio::test]
async fn renewal_time_in_the_window_is_chosen_once() {
    let (town, suggestions) = Town::suggesting().await;
    let now = certified(&suggestions, &town, Some((30, 60))).await;
    let (chosen, start, ask_at, _) = written(&town).await;
    assert_eq!(
        start,
        Some(now + TimeDelta::days(30)),
        "it is asked right away"
    );
    assert!(
        chosen > now + TimeDelta::days(30) && chosen < now + TimeDelta::days(60),
        "{chosen}"
    );
    assert!(
        in_six_hours(&town, ask_at),
        "as often as it wants: {ask_at}"
    );
    // Another node, which only has the stored rows.
    let other = town
        .app
        .another_with(town.settings.clone(), town.app.machine.clone());
    pass_after(&town, &other, 5).await;
    assert_eq!(suggestions.conduct.lock().asked.len(), 1, "no sooner");
    pass_after(&town, &other, 2).await;
    assert_eq!(
        (
            written(&town).await.0,
            suggestions.conduct.lock().asked.len()
        ),
        (chosen, 2),
        "it does not choose again"
    );
    // Another window selects another time.
    suggestions.conduct.lock().window = Some((now + TimeDelta::days(3), now + TimeDelta::days(4)));
    pass_after(&town, &town.node, 7).await;
    let (chosen, ..) = written(&town).await;
    assert!(
        chosen > now + TimeDelta::days(3) && chosen < now + TimeDelta::days(4),
        "{chosen}"
    );
    assert_eq!(town.count("acme_begun").await, 1);
    let identifier = suggestions.conduct.lock().asked[0].clone();
    until_second(&town).await;
    assert_eq!(
        suggestions.conduct.lock().replaced,
        [None, Some(identifier.clone())],
        "an order says what it replaces"
    );
    let asked = suggestions.conduct.lock().asked.clone();
    assert!(
        asked.last() != Some(&identifier) && asked.last().is_some(),
        "then it is asked about the new one"
    );
}

#[tokio::test]
async fn order_rejected_for_replaces_is_retried_without() {
    for replacing in [Replacing::Refused, Replacing::Ignored] {
        let (town, suggestions) = Town::suggesting().await;
        suggestions.conduct.lock().replacing = replacing;
        certified(&suggestions, &town, Some((-20, -10))).await;
        until_second(&town).await;
        let replaced = suggestions.conduct.lock().replaced.clone();
        assert!(
            replaced[0].is_none() && replaced[1].is_some() && replaced[2].is_none(),
            "{replacing:?}: {replaced:?}"
        );
    }
}

#[tokio::test]
async fn past_renewal_window_renews_at_most_once_a_day() {
    let (town, suggestions) = Town::suggesting().await;
    suggestions.conduct.lock().retry_after = 0;
    certified(&suggestions, &town, Some((-20, -10))).await;
    let asked = suggestions.conduct.lock().asked.len();
    // Every half hour for ten hours.
    for _ in 0..20 {
        town.app.advance(1800);
        hostname_reconciler::pass(&town.node.app).await.unwrap();
    }
    assert!(
        (5..=11).contains(&(suggestions.conduct.lock().asked.len() - asked)),
        "no more than once an hour"
    );
    assert_eq!(town.pebble.said("Issued certificate"), 1, "it is new still");
    // The certificate is revoked or about to be.
    until_second(&town).await;
}

#[tokio::test]
async fn missing_renewal_window_defaults_to_two_thirds() {
    let (town, suggestions) = Town::suggesting().await;
    let now = certified(&suggestions, &town, None).await;
    let (renew_at, window, ask_at, until) = written(&town).await;
    let fallback = renew_at;
    assert!(
        renew_at > now + (until - now) / 2 && renew_at < until,
        "{renew_at}"
    );
    assert!(window.is_none() && in_six_hours(&town, ask_at), "{ask_at}");
    for absurd in [
        (until, until + TimeDelta::days(9)),
        (now + TimeDelta::days(9), now + TimeDelta::days(8)),
    ] {
        suggestions.conduct.lock().window = Some(absurd);
        pass_after(&town, &town.node, 7).await;
        let (renew_at, window, ..) = written(&town).await;
        assert_eq!((renew_at, window), (fallback, None));
    }
    // The schedule is kept while the authority returns no window.
    suggestions.conduct.lock().window =
        Some((now + TimeDelta::days(30), now + TimeDelta::days(31)));
    pass_after(&town, &town.node, 7).await;
    let (chosen, ..) = written(&town).await;
    assert!(chosen < now + TimeDelta::days(31));
    suggestions.conduct.lock().window = None;
    pass_after(&town, &town.node, 7).await;
    assert_eq!(written(&town).await.0, chosen);
}

#[tokio::test]
async fn misrouted_hostname_is_not_renewed() {
    let town = Town::new(false).await;
    town.prove().await;
    town.until(&town.node, "4_origin_setup_completed").await;
    let begun = town.count("acme_begun").await;
    town.said.seen.lock().alias = Some("elsewhere.test".into());
    town.app
        .app
        .db
        .query(
            "update hostname_certificates set renew_at = $1",
            &[&town.app.clock.now()],
        )
        .await
        .unwrap();
    for _ in 0..3 {
        town.app.advance(24 * 3600);
        hostname_reconciler::pass(&town.node.app).await.unwrap();
    }
    assert_eq!(town.count("acme_begun").await, begun);
    let told = town.ask("").await;
    assert!(
        told["data"]["result"]["verification_errors"][0]
            .as_str()
            .unwrap()
            .contains("found elsewhere.test"),
        "{told}"
    );
}
