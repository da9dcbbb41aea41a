//! Masking of copies: masked data is in no file, and without complete masking there is no copy. And
//! copies that do not fit.

use gantry_node::{clusters::CopySpec, error::ClusterError};

use super::copies::{batch, copy_of, files_with, number, started};
use crate::support::machine::{Machine, SuperuserClients as _};

const CANARY: &str = "canary-masked-address";

async fn masked_copy(rules: &[&str]) -> (Machine, CopySpec) {
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    batch(
        &original,
        "create table public.people (id int primary key, email text, note text);
         alter table public.people owner to postgres;
         create index people_email on public.people (email);
         create statistics public.people_both on email, note from public.people;
         alter statistics public.people_both owner to postgres;
         insert into public.people
         select n, 'canary-masked-address-' || n % 7, repeat('canary-masked-address ', 200)
         from generate_series(1, 500) n;
         analyze public.people;
         create table public.kept (body text);
         insert into public.kept values ('as it was');",
    )
    .await;
    let major = machine.clusters.engines().default_engine().major();
    let masking = rules.iter().map(|&rule| rule.to_owned()).collect();
    let spec = CopySpec {
        masking,
        ..copy_of(&source, 2, major)
    };
    (machine, spec)
}

#[tokio::test]
async fn masked_strings_are_in_no_file_of_the_copy() {
    let (machine, spec) = masked_copy(&[
        "update public.people set email = md5(email) || '@example.test'",
        "update public.people set note = null",
    ])
    .await;
    let source = machine.data(&spec.source);
    assert!(!files_with(&source, &[CANARY]).is_empty());
    let report = machine.clusters.create_copy(&spec).await.unwrap();
    let data = machine.data(&spec.cluster.project);
    assert_eq!(files_with(&data, &[CANARY]), Vec::<String>::new());
    let steps = report.isolation.iter();
    let masked = steps.map(|step| (&*step.name, step.count));
    let masked: Vec<_> = masked.filter(|(name, _)| name.contains("mask")).collect();
    assert_eq!(masked, [("masking rules applied", 2), ("tables masked", 1)]);
    let (_, copy) = started(&machine, &spec).await;
    let sql =
        "select count(*) from public.people where email like '%@example.test' and note is null";
    assert_eq!(number(&copy, sql).await, 500);
    assert_eq!(number(&copy, "select count(*) from public.kept").await, 1);
}

#[tokio::test]
async fn copy_with_a_failing_rule_gets_no_place() {
    let (machine, spec) = masked_copy(&[
        "update public.people set email = null",
        "update public.people set note = 1 / 0",
    ])
    .await;
    let error = machine.clusters.create_copy(&spec).await.unwrap_err();
    assert!(matches!(error, ClusterError::Isolation(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("masking rule 2 failed: 22012"), "{text}");
    assert!(!machine.data(&spec.cluster.project).exists());
    assert_eq!(
        std::fs::read_dir(machine.dir().join("tmp"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn rules_have_the_rights_of_the_owner_only() {
    for rule in [
        "set session authorization supabase_admin; create role intruder superuser",
        "reset role; create role intruder superuser",
        "copy (select 1) to program 'true'",
    ] {
        let (machine, spec) = masked_copy(&[rule]).await;
        let error = machine.clusters.create_copy(&spec).await.unwrap_err();
        assert!(error.to_string().contains("42501"), "{rule}: {error}");
    }
}

#[tokio::test]
async fn copy_that_does_not_fit_is_refused_before_a_byte_is_copied() {
    let (machine, spec) = masked_copy(&[]).await;
    // A hole costs no space, but counts as the size of the database.
    let base = machine.data(&spec.source).join("base");
    let databases = std::fs::read_dir(base).unwrap().flatten();
    let database = databases.map(|entry| entry.path()).max().unwrap();
    let file = std::fs::File::create(database.join("999999")).unwrap();
    file.set_len(8 << 40).unwrap();
    let error = machine.clusters.create_copy(&spec).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("its copy needs") && text.contains("MB are free"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_dir(machine.dir().join("tmp"))
            .unwrap()
            .count(),
        0
    );
}
