//! The operations of a project, with traps in its database: each one is called here, or listed with
//! the reason why it opens no session of the platform in a tenant's database.

use std::collections::BTreeSet;

use gantry::{
    api::{
        branches::operator::{self, BranchScripts},
        endpoints,
    },
    control::{
        backups::{state::BackupOptions, upkeep},
        projects::Status,
    },
    platform::audit::Recorder,
};
use gantry_base::ids::ProjectRef;
use gantry_node::engines::Engines;
use serde_json::{Value, json};

use super::{PLANT, assert_not_sprung, script};
use crate::{
    backups::{backed_up_on, next_second, until_complete, until_reached, until_restored},
    branches::until_finished,
    sso_providers::metadata,
    support::{
        TestApp,
        machine::{Machine, engines},
    },
};

/// Operations that [`operations_run_no_code_of_the_tenant_with_a_right_of_the_platform`] calls.
const CALLED: &[&str] = &[
    "v1-get-services-health",
    "v1-generate-typescript-types",
    "v1-get-performance-advisors",
    "v1-get-security-advisors",
    "v1-get-database-metadata",
    "v1-scrape-project-metrics",
    "v1-run-a-query",
    "v1-read-only-query",
    "v1-apply-a-migration",
    "v1-list-migration-history",
    "v1-update-postgres-config",
    "v1-update-database-password",
    "v1-restart-a-project",
    "v1-pause-a-project",
    "v1-restore-a-project",
    "v1-create-login-role",
    "v1-delete-login-roles",
    "v1-update-jit-access-config",
    "v1-update-jit-access",
    "v1-authorize-jit-access",
    "v1-delete-jit-access",
    "v1-list-all-sso-provider",
    "v1-create-a-sso-provider",
    "v1-get-a-sso-provider",
    "v1-update-a-sso-provider",
    "v1-delete-a-sso-provider",
    "v1-list-all-buckets",
    "v1-enable-database-webhook",
    "v1-create-restore-point",
    "v1-restore-pitr-backup",
    "v1-undo",
    "gantry-restore-to-new-project",
    "gantry-restore-tables",
    "v1-create-a-branch",
    "v1-merge-a-branch",
    "v1-push-a-branch",
    "v1-reset-a-branch",
];

/// Operations that other tests call with traps, by the driver.
const CALLED_BY_DRIVER: &[&str] = &[
    "v1-upgrade-postgres-version",
    "v1-get-postgres-upgrade-eligibility",
    "v1-get-postgres-upgrade-status",
    "v1-disable-readonly-mode-temporarily",
];

/// Beginnings of the ids of operations that open no session of the platform in a tenant's database:
/// they read or change rows of the control database, logs, names, keys or services, or they start
/// what an operation above starts as well.
const ELSEWHERE: &[&str] = &[
    // Rows of the control database.
    "v1-get-project",
    "v1-update-a-project",
    "v1-delete-a-project",
    "v1-create-project-",
    "v1-delete-project-",
    "v1-update-project-",
    "v1-remove-project-",
    "v1-list-project-",
    "v1-apply-project-addon",
    "v1-list-action-runs",
    "v1-count-action-runs",
    "v1-get-action-run",
    "v1-update-action-run-status",
    "v1-list-all-branches",
    "v1-get-a-branch",
    "v1-update-a-branch-config",
    "v1-delete-a-branch",
    "v1-restore-a-branch",
    "v1-disable-preview-branching",
    "v2-create-a-branch",
    "v1-list-all-backups",
    "v1-get-restore-point",
    "v1-restore-physical-backup",
    "v1-get-backup-schedule",
    "v1-update-backup-schedule",
    "v2-download-project-backup",
    "v1-cancel-a-project-restoration",
    "v1-list-available-restore-versions",
    "v1-get-readonly-mode-status",
    "gantry-",
    // Keys, settings and names.
    "v1-get-auth-service-config",
    "v1-update-auth-service-config",
    "v1-get-legacy-signing-key",
    "v1-create-legacy-signing-key",
    "v1-get-pooler-config",
    "v1-update-pooler-config",
    "v1-get-postgres-config",
    "v1-patch-postgres-config",
    "v1-get-database-disk",
    "v1-modify-database-disk",
    "v1-get-disk-utilization",
    "v1-get-realtime-config",
    "v1-update-realtime-config",
    "v1-shutdown-realtime",
    "v1-get-storage-config",
    "v1-update-storage-config",
    "v1-get-postgrest-service-config",
    "v1-update-postgrest-service-config",
    "v1-get-pgsodium-config",
    "v1-update-pgsodium-config",
    "v1-get-ssl-enforcement-config",
    "v1-update-ssl-enforcement-config",
    "v1-get-network-restrictions",
    "v1-patch-network-restrictions",
    "v1-update-network-restrictions",
    "v1-review-network-restrictions",
    "v1-delete-network-bans",
    "v1-list-all-network-bans",
    "v1-Delete hostname config",
    "v1-get-hostname-config",
    "v1-update-hostname-config",
    "v1-activate-custom-hostname",
    "v1-verify-dns-config",
    "v1-deactivate-vanity-subdomain-config",
    "v1-get-vanity-subdomain-config",
    "v1-activate-vanity-subdomain-config",
    "v1-check-vanity-subdomain-availability",
    "v1-bulk-delete-secrets",
    "v1-list-all-secrets",
    "v1-bulk-create-secrets",
    // Rows of grants of temporary access.
    "v1-get-jit-access",
    "v1-invite-external-jit-access",
    "v1-accept-invite-external-jit-access",
    "v1-delete-invite-external-jit-access",
    "v1-list-jit-access",
    // SQL of the caller, in sessions of the owner, as the called ones of migrations.
    "v1-rollback-migrations",
    "v1-upsert-a-migration",
    "v1-get-a-migration",
    "v1-patch-a-migration",
    "v1-get-database-openapi",
    // A program of a service kit, in read-only sessions of the owner.
    "v1-diff-a-branch",
    // Functions, which have a process of their own.
    "v1-list-all-functions",
    "v1-create-a-function",
    "v1-bulk-update-functions",
    "v1-deploy-a-function",
    "v1-delete-a-function",
    "v1-get-a-function",
    "v1-update-a-function",
    // Log drains, the same checks as the first version's, and what is not built.
    "v2-",
    "v1-setup-a-read-replica",
    "v1-remove-a-read-replica",
];

fn lists_project(path: &str) -> bool {
    path.contains("{ref}") || path.contains("{branch_id_or_ref}")
}

#[test]
fn every_operation_of_a_project_is_called_or_needs_no_session() {
    let of_projects: Vec<&str> = endpoints::all()
        .iter()
        .filter(|endpoint| lists_project(endpoint.path))
        .map(|endpoint| endpoint.id)
        .collect();
    assert!(of_projects.len() > 150, "{}", of_projects.len());
    let called = |id: &str| CALLED.contains(&id) || CALLED_BY_DRIVER.contains(&id);
    let missing: Vec<&&str> = of_projects
        .iter()
        .filter(|id| !called(id) && !ELSEWHERE.iter().any(|start| id.starts_with(start)))
        .collect();
    assert!(
        missing.is_empty(),
        "call these operations with traps in the database, or list them: {missing:?}"
    );
    let unknown: Vec<&&str> = CALLED
        .iter()
        .chain(CALLED_BY_DRIVER)
        .filter(|id| !of_projects.contains(id))
        .collect();
    assert!(unknown.is_empty(), "no operations: {unknown:?}");
    let unused: Vec<&&str> = ELSEWHERE
        .iter()
        .filter(|start| !of_projects.iter().any(|id| id.starts_with(*start)))
        .collect();
    assert!(unused.is_empty(), "no operation begins so: {unused:?}");
}

/// Calls operations by their ids, and notes them.
struct Caller {
    app: TestApp,
    called: BTreeSet<&'static str>,
}

impl Caller {
    /// Calls an operation of a project or branch as the owner. `rest` replaces the other parameter
    /// of the path, or is the query.
    async fn call(
        &mut self,
        id: &'static str,
        project: &ProjectRef,
        rest: &str,
        body: &Value,
    ) -> Value {
        let endpoint = endpoints::all().iter().find(|it| it.id == id).unwrap();
        let mut path = endpoint
            .path
            .replace("{ref}", project.as_str())
            .replace("{branch_id_or_ref}", project.as_str());
        match (path.find('{'), path.find('}')) {
            (Some(begin), Some(end)) => path.replace_range(begin..=end, rest),
            _ => path.push_str(rest),
        }
        let request = self.app.request(endpoint.method.name(), &path);
        let request = request.as_(&self.app.owner);
        let answer = if body.is_null() {
            request.send().await
        } else {
            request.json(body).send().await
        };
        assert!(
            answer.status.is_success(),
            "{id}: {} {}",
            answer.status,
            answer.text()
        );
        self.called.insert(id);
        serde_json::from_str(answer.text()).unwrap_or_default()
    }

    async fn safe(&self, project: &ProjectRef, after: &str) {
        assert_not_sprung(&self.app.machine, project, after).await;
    }

    async fn query(&mut self, project: &ProjectRef, query: &str) -> Value {
        let body = json!({ "query": query });
        self.call("v1-run-a-query", project, "", &body).await
    }

    async fn read_everything(&mut self, project: &ProjectRef) {
        for (id, rest) in [
            ("v1-get-services-health", "?services=db"),
            ("v1-generate-typescript-types", "?included_schemas=public"),
            ("v1-get-performance-advisors", ""),
            ("v1-get-security-advisors", ""),
            ("v1-get-database-metadata", ""),
            ("v1-scrape-project-metrics", ""),
            ("v1-list-migration-history", ""),
            ("v1-list-all-buckets", ""),
        ] {
            self.call(id, project, rest, &Value::Null).await;
        }
        let one = json!({"query": "select 1 as n"});
        for id in ["v1-run-a-query", "v1-read-only-query"] {
            self.call(id, project, "", &one).await;
        }
        self.safe(project, "reads").await;
    }

    async fn change_providers(&mut self, project: &ProjectRef) {
        let path = format!("/v1/projects/{project}/config/auth");
        let enabled = self.app.patch(&path).as_(&self.app.owner);
        let enabled = enabled.json(&json!({"saml_enabled": true})).send().await;
        enabled.expect(200);
        let xml = metadata("https://idp.example.com");
        let body = json!({"type": "saml", "metadata_xml": xml, "domains": ["example.com"]});
        let made = self
            .call("v1-create-a-sso-provider", project, "", &body)
            .await;
        let id = made["id"].as_str().unwrap().to_owned();
        let body = json!({"metadata_xml": xml, "domains": ["example.org"]});
        self.call("v1-update-a-sso-provider", project, &id, &body)
            .await;
        self.call("v1-list-all-sso-provider", project, "", &Value::Null)
            .await;
        for operation in ["v1-get-a-sso-provider", "v1-delete-a-sso-provider"] {
            self.call(operation, project, &id, &Value::Null).await;
        }
        self.safe(project, "changes of SSO providers").await;
    }

    async fn change_logins(&mut self, project: &ProjectRef) {
        let enabled = json!({"state": "enabled"});
        self.call("v1-update-jit-access-config", project, "", &enabled)
            .await;
        let user = self.app.owner.gotrue_id.to_string();
        let grant = json!({"user_id": user, "roles": [{"role": "postgres"}]});
        self.call("v1-update-jit-access", project, "", &grant).await;
        let login = json!({"role": "postgres", "rhost": "203.0.113.7"});
        self.call("v1-authorize-jit-access", project, "", &login)
            .await;
        self.call("v1-delete-jit-access", project, &user, &Value::Null)
            .await;
        self.safe(project, "temporary access").await;
    }

    async fn change_server(&mut self, project: &ProjectRef) {
        let roles = json!({"read_only": false});
        self.call("v1-create-login-role", project, "", &roles).await;
        let none = Value::Null;
        self.call("v1-delete-login-roles", project, "", &none).await;
        self.call("v1-enable-database-webhook", project, "", &none)
            .await;
        let password = json!({"password": "another correct horse"});
        self.call("v1-update-database-password", project, "", &password)
            .await;
        self.app.until(project, Status::ActiveHealthy).await;
        let settings = json!({"work_mem": "8MB"});
        self.call("v1-update-postgres-config", project, "", &settings)
            .await;
        self.app.until(project, Status::ActiveHealthy).await;
        self.call("v1-restart-a-project", project, "", &none).await;
        self.app.until(project, Status::ActiveHealthy).await;
        self.safe(project, "a restart").await;
        self.call("v1-pause-a-project", project, "", &none).await;
        self.app.until(project, Status::Inactive).await;
        self.call("v1-restore-a-project", project, "", &none).await;
        self.app.until(project, Status::ActiveHealthy).await;
        self.safe(project, "a pause").await;
    }

    /// Plants the traps by a migration, so that branches without data have them too.
    async fn plant(&mut self, project: &ProjectRef, major: u16) {
        let migration = json!({"name": "traps", "query": script(major)});
        self.call("v1-apply-a-migration", project, "", &migration)
            .await;
        self.safe(project, "planting").await;
    }

    async fn change_branches(&mut self, project: &ProjectRef) {
        let migration = json!({"name": "base", "query": "create table public.base (id int)"});
        self.call("v1-apply-a-migration", project, "", &migration)
            .await;
        let seed = "insert into public.base values (7); update public.trapped set body = 'seed'";
        let audit = Recorder::operator("test", &self.app.app.entropy, "gantry branch seed");
        let (db, clock) = (&self.app.app.db, &self.app.clock);
        let kind = BranchScripts::Seed;
        operator::set_scripts(db, kind, project, &[seed.to_owned()], clock, audit)
            .await
            .unwrap();
        let mut branches = Vec::new();
        for (name, with_data) in [("data", true), ("migrations", false)] {
            let body = json!({"branch_name": name, "with_data": with_data});
            let made = self.call("v1-create-a-branch", project, "", &body).await;
            let branch: ProjectRef = made["project_ref"].as_str().unwrap().parse().unwrap();
            until_finished(&self.app).await;
            branches.push(branch);
        }
        self.safe(&branches[0], "a branch with data").await;
        self.safe(&branches[1], "a branch from migrations, with a seed")
            .await;
        let seeded = self.query(&branches[1], "select id from public.base").await;
        assert_eq!(seeded, json!([{"id": 7}]));
        let migration = json!({"name": "own", "query": "create table public.own (id int)"});
        let branch = &branches[0];
        self.call("v1-apply-a-migration", branch, "", &migration)
            .await;
        for id in ["v1-merge-a-branch", "v1-push-a-branch", "v1-reset-a-branch"] {
            self.call(id, branch, "", &json!({})).await;
            until_finished(&self.app).await;
            self.safe(branch, id).await;
            self.safe(project, id).await;
        }
    }

    /// Verifies the backup of a project completely. Its cluster is gone afterwards, so a trap of
    /// the platform's session shows by a verification that fails.
    async fn verify(&mut self, project: &ProjectRef) {
        let marks = PLANT.split(";;\n");
        let marks = marks
            .map(str::trim)
            .find(|it| it.contains("function trap.spring("));
        let marks = marks
            .unwrap()
            .replace("create function", "create or replace function");
        let raises = marks.replace("raise warning", "raise exception");
        assert_ne!(marks, raises);
        self.query(project, &raises).await;
        let moment = next_second().await;
        until_reached(&self.app, project, moment).await;
        assert!(upkeep::verify_now(&self.app.app, project).await.unwrap());
        let sql = "select verified_at is not null, verify_error from base_backups b \
                   join archives a on a.id = b.archive_id join projects p on p.id = a.project_id \
                   where p.ref = $1 order by b.id desc limit 1";
        let verified = self.app.app.db.query(sql, &[&project.as_str()]).await;
        let verified = &verified.unwrap()[0];
        assert_eq!(verified.get::<_, Option<String>>(1), None);
        assert!(verified.get::<_, bool>(0));
        self.query(project, &marks).await;
    }

    async fn restore(&mut self, project: &ProjectRef) {
        let point = json!({"name": "trapped"});
        self.call("v1-create-restore-point", project, "", &point)
            .await;
        let moment = next_second().await;
        until_reached(&self.app, project, moment).await;
        let body = json!({
            "name": "past", "db_pass": "correct horse battery",
            "recovery_time_target_unix": moment
        });
        self.verify(project).await;
        let made = self
            .call("gantry-restore-to-new-project", project, "", &body)
            .await;
        let new: ProjectRef = made["ref"].as_str().unwrap().parse().unwrap();
        self.app.until(&new, Status::ActiveHealthy).await;
        self.safe(&new, "a restore into a new project").await;
        let body = json!({
            "tables": [{"schema": "public", "name": "children"}],
            "recovery_time_target_unix": moment
        });
        self.call("gantry-restore-tables", project, "", &body).await;
        crate::backups::elsewhere::until_ended(&self.app, project).await;
        self.safe(project, "a restore of tables").await;
        let body = json!({"recovery_time_target_unix": moment});
        self.call("v1-restore-pitr-backup", project, "", &body)
            .await;
        assert_eq!(until_restored(&self.app, project).await, None);
        self.safe(project, "a restore").await;
        let path = format!("/v1/projects/{project}/database/backups/restore-point");
        let point = self.app.get(&path).as_(&self.app.owner).send().await;
        let undo = json!({"name": point.expect(200).json()["name"]});
        self.call("v1-undo", project, "", &undo).await;
        assert_eq!(until_restored(&self.app, project).await, None);
        self.safe(project, "an undo").await;
    }
}

#[tokio::test]
async fn operations_run_no_code_of_the_tenant_with_a_right_of_the_platform() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let app = backed_up_on(BackupOptions::default(), machine).await;
        let project = app.real_project().await;
        until_complete(&app, &project, 1).await;
        let mut caller = Caller {
            app,
            called: BTreeSet::new(),
        };
        caller.plant(&project, engine.major()).await;
        caller.read_everything(&project).await;
        caller.change_providers(&project).await;
        caller.change_logins(&project).await;
        caller.change_server(&project).await;
        caller.change_branches(&project).await;
        caller.restore(&project).await;
        let listed: BTreeSet<&str> = CALLED.iter().copied().collect();
        assert_eq!(caller.called, listed, "{}", engine.text());
    }
}
