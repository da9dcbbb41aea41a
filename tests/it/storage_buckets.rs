//! Buckets of files, listed from the database of a project.

use serde_json::json;

use crate::support::TestApp;

#[tokio::test]
async fn buckets_are_listed_from_the_database() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/storage/buckets");
    let list = async || app.get(&path).as_(&app.owner).send().await;
    let query = async |sql: &str| {
        let path = format!("/v1/projects/{project}/database/query");
        let body = json!({"query": sql});
        app.post(&path)
            .as_(&app.owner)
            .json(&body)
            .send()
            .await
            .expect(201)
    };
    assert_eq!(list().await.expect(200).json(), json!([]));
    query(
        "insert into storage.buckets (id, name, public, owner_id, created_at, updated_at) values \
         ('photos', 'Photos', true, 'user-1', '2026-01-02 03:04:05.678+00', null), \
         ('drafts', 'Drafts', null, null, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00')",
    )
    .await;
    assert_eq!(
        list().await.expect(200).json(),
        json!([
            {
                "id": "drafts", "name": "Drafts", "owner": "", "public": false,
                "created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:00:00.000Z",
            },
            {
                "id": "photos", "name": "Photos", "owner": "user-1", "public": true,
                "created_at": "2026-01-02T03:04:05.678Z", "updated_at": "",
            },
        ])
    );
}
