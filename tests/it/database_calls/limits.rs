//! Limits of calls: their receivers, their age, the ports of the operator, and restarts.

use std::sync::Arc;

use gantry::{
    app::Settings,
    control::projects::Status,
    proxy::service_proxy::{self, upstreams::ServiceUpstream},
};
use serde_json::json;

use super::{Caller, permitting, receiver::Receiver, response, text};
use crate::{edge::Gate, support::Node};

/// Serves functions of all projects by the receiver.
fn with_functions(settings: Settings, receiver: &Receiver) -> Settings {
    let functions = format!("functions=http://{}", receiver.address);
    let functions: ServiceUpstream = functions.parse().unwrap();
    let service_proxy = service_proxy::Options {
        upstreams: [functions].into_iter().collect(),
        check_keys: false,
        ..settings.service_proxy.clone()
    };
    Settings {
        service_proxy,
        ..settings
    }
}

/// Ends the sender with its node, and starts another node.
fn on_another_node(caller: &mut Caller) -> Node {
    caller.node.kill();
    let settings = permitting(&caller.receiver);
    let machine = Arc::clone(&caller.node.machine);
    let mut again = caller.app.another_with(settings, machine);
    again.start();
    again
}

#[tokio::test]
async fn receiver_that_does_not_answer_leaves_places_to_others() {
    let caller = Caller::new().await;
    let slow = format!(
        "select count(net.http_get('{}', timeout_milliseconds := 300))::text
         from generate_series(1, 400)",
        caller.receiver.url("/slow")
    );
    caller.text(&slow).await;
    // Behind all of them, to another host.
    let other = caller
        .receiver
        .url("/echo")
        .replace("127.0.0.1", "localhost");
    let row = caller.response(&format!("net.http_get('{other}')")).await;
    assert_eq!(row["status_code"], 201, "{row}");
    let waiting = caller
        .text("select count(*)::text from net.http_request_queue")
        .await;
    assert!(waiting.parse::<u32>().unwrap() > 100, "{waiting}");
    // When it answers, the parked calls are sent as well.
    caller.receiver.release();
    caller.receiver.until("/slow", 400).await;
}

#[tokio::test]
async fn responses_are_removed_after_six_hours() {
    let mut caller = Caller::new().await;
    let rows = "insert into net._http_response (id, created) values
        (1, now() - interval '361 minutes'), (2, now() - interval '359 minutes')";
    caller.database.batch_execute(rows).await.unwrap();
    let mut again = on_another_node(&mut caller);
    let removed = "do $$ begin
        for attempt in 1..2000 loop
            exit when not exists (select from net._http_response where id = 1);
            perform pg_sleep(0.02);
        end loop;
    end $$";
    caller.database.batch_execute(removed).await.unwrap();
    let ids = "select string_agg(id::text, ' ') from net._http_response";
    assert_eq!(caller.text(ids).await, "2");
    again.stop().await;
}

#[tokio::test]
async fn queue_without_the_trigger_of_the_extension_is_read_each_second() {
    let mut caller = Caller::new().await;
    let drop = "drop trigger announce_requests on net.http_request_queue";
    caller.database.batch_execute(drop).await.unwrap();
    let mut again = on_another_node(&mut caller);
    let get = format!("net.http_get('{}')", caller.receiver.url("/echo"));
    // The first may be found by the start of the sender. With the trigger's look each 30 seconds,
    // the others would take 30 seconds each, and none returns before.
    for _ in 0..3 {
        let started = caller.text("select clock_timestamp()::text").await;
        caller.response(&get).await;
        let took =
            format!("select (clock_timestamp() - '{started}' < interval '25 seconds')::text");
        assert_eq!(caller.text(&took).await, "true");
    }
    again.stop().await;
}

#[tokio::test]
async fn without_egress_only_the_own_services_are_reached() {
    let caller = Caller::with(|settings, receiver| {
        let mut settings = with_functions(settings, receiver);
        settings.services.egress = "none".parse().unwrap();
        settings
    })
    .await;
    let row = caller
        .response("net.http_get('https://example.com/')")
        .await;
    assert_eq!(
        row["error_msg"],
        "the operator of this server permits no calls to other machines"
    );
    let Caller {
        app,
        node,
        project,
        receiver: _receiver,
        database,
    } = caller;
    let own = format!("https://{project}.example.test/functions/v1/hello");
    let _gate = Gate::of(app, node, project).await;
    let row = response(&database, &format!("net.http_post('{own}')")).await;
    assert_eq!(row["status_code"], json!(201), "{row}");
}

#[tokio::test]
async fn webhooks_and_jobs_call_a_function_through_a_restart() {
    let caller = Caller::with(with_functions).await;
    let Caller {
        app,
        node,
        project,
        receiver,
        database,
    } = caller;
    let gate = Gate::of(app, node, project.clone()).await;
    let (app, node, project) = (&gate.app, &gate.node, &project);
    let enable = format!("/v1/projects/{project}/database/webhooks/enable");
    node.post(&enable).as_(&app.owner).send().await.expect(201);
    let host = format!("https://{project}.example.test/functions/v1");
    let schema = format!(
        "create table orders (id int);
         create trigger told after insert on orders for each row execute function
             supabase_functions.http_request('{host}/hook', 'POST', '{{}}', '{{}}', '5000');
         create function call_later() returns bigint language sql as
             $$ select net.http_post('{host}/later', '{{}}') $$;"
    );
    database.batch_execute(&schema).await.unwrap();
    let has_jobs = "select count(*)::text from pg_available_extensions where name = 'pg_cron'
        and default_version >= '1.5'";
    let has_jobs = text(&database, has_jobs).await != "0";
    if has_jobs {
        let job = "create extension pg_cron;
            select cron.schedule('1 second', 'select public.call_later()')";
        database.batch_execute(job).await.unwrap();
        receiver.until("/later", 1).await;
    }
    database
        .batch_execute("insert into orders values (1)")
        .await
        .unwrap();
    receiver.until("/hook", 1).await;
    let restart = format!("/v1/projects/{project}/restart");
    node.post(&restart).as_(&app.owner).send().await.expect(200);
    node.until(project, Status::ActiveHealthy).await;
    let database = node.machine.connect(project, "postgres").await.unwrap();
    node.app.database_calls.wake();
    let before = receiver.count("/later");
    database
        .batch_execute("insert into orders values (2)")
        .await
        .unwrap();
    receiver.until("/hook", 2).await;
    if has_jobs {
        receiver.until("/later", before + 1).await;
    }
    let get = format!("net.http_get('{}')", receiver.url("/echo"));
    assert_eq!(response(&database, &get).await["status_code"], 201);
    assert_eq!(
        text(&database, "select count(*)::text from orders").await,
        "2"
    );
}
