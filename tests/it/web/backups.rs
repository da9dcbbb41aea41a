//! The page of a project's backups.

use super::browser::{olga, signed_in};
use crate::support::TestApp;

#[tokio::test]
async fn backups_page_reviews_a_restore() {
    let app = TestApp::new().await;
    let mut browser = olga(&app).await;
    let mut rita = signed_in(&app, &app.read_only).await;
    let mut stan = signed_in(&app, &app.stranger).await;
    let page = format!("/projects/{}/backups", app.home.project);
    let (review, restore) = (format!("{page}/review"), format!("{page}/restore"));
    let project = format!("/projects/{}", app.home.project);
    browser
        .get(&project)
        .await
        .expect(200)
        .says(&format!("href=\"{page}\""));
    browser
        .get(&page)
        .await
        .expect(200)
        .says("The first backup is not complete yet.")
        .says("No backups yet.")
        .hides("Restore to a point in time");
    app.mark_restore_point(&app.home.project).await;
    let sql = "insert into base_backups (project_id, archive_id, status, reason, start_lsn, stop_lsn, consistent_at, inserted_at)
               select project_id, id, 'COMPLETED', 'first', 0, 0, created_at, created_at from archives";
    app.app.db.query(sql, &[]).await.unwrap();
    let shown = browser.get(&page).await.expect(200);
    shown
        .says("Last restore point")
        .says("Restore to a point in time")
        .says("Not verified yet");
    browser
        .submit(&page, &review, &[("moment", "yesterday")])
        .await
        .expect(422)
        .says("Enter a time in UTC")
        .says("yesterday");
    browser
        .submit(&page, &review, &[("moment", "2020-01-31 12:00:07")])
        .await
        .expect(200)
        .says("31 Jan 2020, 12:00:07 UTC")
        .says("Restore project")
        .says("Restore into a new project")
        .says("Restore single tables");
    browser
        .submit(&page, &restore, &[("moment", "2020-01-31 12:00:07")])
        .await
        .expect(422)
        .says("Recovery time target must be within range");
    let moment = ("moment", "2020-01-31 12:00:07");
    for (form, fields) in [
        (
            "restore-to-new-project",
            [moment, ("name", "copy"), ("password", "x")],
        ),
        (
            "restore-tables",
            [moment, ("tables", "public.orders"), ("", "")],
        ),
    ] {
        browser
            .submit(&page, &format!("{page}/{form}"), &fields)
            .await
            .expect(422)
            .says("Recovery time target must be within range");
    }
    let schedule = format!("{page}/schedule");
    browser
        .submit(&page, &schedule, &[("time", "04:15")])
        .await
        .expect(303);
    browser.get(&page).await.expect(200).says("04:15:00");
    browser
        .submit(&page, &schedule, &[("time", "noon")])
        .await
        .expect(422)
        .says("schedule_for");
    rita.submit("/account", &schedule, &[("time", "05:00")])
        .await
        .expect(403);
    rita.get(&page)
        .await
        .expect(200)
        .says("You cannot restore this project.");
    rita.submit("/account", &restore, &[("moment", "2020-01-31 12:00:07")])
        .await
        .expect(403);
    stan.get(&page).await.expect(404);
}
