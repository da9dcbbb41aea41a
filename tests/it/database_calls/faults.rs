//! Crashes of the sender, many calls, and tables that a tenant changed.

use std::sync::Arc;

use super::{Caller, permitting, project, response};

/// Queues calls, and returns the last id.
async fn queue(caller: &Caller, path: &str, count: usize) -> String {
    let url = caller.receiver.url(path);
    caller
        .text(&format!(
            "select max(net.http_get('{url}' || case when {count} > 1 then n::text else '' end))::text
             from generate_series(1, {count}) n"
        ))
        .await
}

#[tokio::test]
async fn calls_in_batches_are_sent_once_each() {
    let caller = Caller::new().await;
    let last = queue(&caller, "/many/", 250).await;
    let awaited = format!("select net._await_response({last})::text");
    assert_eq!(caller.text(&awaited).await, "true");
    for number in 1..=250 {
        let path = format!("/many/{number}");
        assert_eq!(caller.receiver.until(&path, 1).await.len(), 1, "{path}");
    }
    let next = format!("net.http_get('{}')", caller.receiver.url("/echo"));
    caller.response(&next).await;
    let stored = "select count(distinct id)::text || ' ' || count(*)::text from net._http_response";
    assert_eq!(caller.text(stored).await, "251 251");
}

#[tokio::test]
async fn killed_node_sends_later_what_was_not_answered() {
    let mut caller = Caller::new().await;
    let url = caller.receiver.url("/answered");
    caller.response(&format!("net.http_get('{url}')")).await;
    queue(&caller, "/slow", 1).await;
    caller.receiver.until("/slow", 1).await;
    caller.node.kill();
    queue(&caller, "/later", 1).await;
    let settings = permitting(&caller.receiver);
    let machine = Arc::clone(&caller.node.machine);
    let mut again = caller.app.another_with(settings, machine);
    again.start();
    caller.receiver.until("/later", 1).await;
    caller.receiver.until("/slow", 2).await;
    assert_eq!(caller.receiver.count("/answered"), 1);
    again.stop().await;
}

#[tokio::test]
async fn changed_tables_harm_their_own_project_only() {
    let caller = Caller::new().await;
    let (_other, neighbour) = project(&caller.app, &caller.node, "neighbour").await;
    let database = &caller.database;
    let url = caller.receiver.url("/echo");
    let get = format!("net.http_get('{url}')");
    caller.response(&get).await;
    // Rows that no function of the extension writes.
    let rows = format!(
        "alter table net.http_request_queue alter url drop not null;
         alter table net.http_request_queue alter timeout_milliseconds drop not null;
         insert into net.http_request_queue (id, method, url, headers, body, timeout_milliseconds)
         values
             (101, 'GET', null, null, null, 1000), (102, 'GET', '{url}', '[]', null, 1000),
             (103, 'GET', '{url}', jsonb_build_object('a', repeat('x', 70000)), null, 1000),
             (104, 'POST', '{url}', null, decode(repeat('00', 1100000), 'hex'), 1000),
             (105, 'GET', '{url}', null, null, -1), (106, 'POST', '{url}', 'null', null, null)"
    );
    database.batch_execute(&rows).await.unwrap();
    for id in 101..=106 {
        let awaited = format!("select net._await_response({id})::text");
        assert_eq!(caller.text(&awaited).await, "true", "{id}");
    }
    let errors =
        "select string_agg(id || ' ' || coalesce(error_msg, status_code::text), '; ' order by id)
        from net._http_response where id > 100";
    assert_eq!(
        caller.text(errors).await,
        "101 the URL is invalid: relative URL without a base; 102 the headers must be a JSON object; \
         103 the headers must have at most 65536 bytes; \
         104 the body must have at most 1048576 bytes; 105 timeout_milliseconds must be greater than 0; 106 201"
    );
    // A response that cannot be stored is dropped, and its call not sent again.
    let trap = "create function public.trap() returns trigger language plpgsql as
            'begin raise exception ''no %'', repeat(''x'', 1000000); end';
        create trigger trap before insert on net._http_response for each row
            execute function public.trap()";
    database.batch_execute(trap).await.unwrap();
    queue(&caller, "/dropped", 1).await;
    caller.receiver.until("/dropped", 1).await;
    response(&neighbour, &get).await;
    let release = "drop trigger trap on net._http_response";
    database.batch_execute(release).await.unwrap();
    caller.response(&get).await;
    assert_eq!(caller.receiver.count("/dropped"), 1);
    // A row that cannot be removed stops the sender of its project.
    let keep = "create function public.keep() returns trigger language plpgsql as
            'begin return null; end';
        create trigger keep before delete on net.http_request_queue for each row
            execute function public.keep()";
    database.batch_execute(keep).await.unwrap();
    queue(&caller, "/kept", 1).await;
    caller.receiver.until("/kept", 1).await;
    response(&neighbour, &get).await;
    // So does a table that is gone.
    let rename = "drop trigger keep on net.http_request_queue;
        alter table net.http_request_queue rename to gone; notify gantry_pg_net";
    database.batch_execute(rename).await.unwrap();
    response(&neighbour, &get).await;
    let back = "alter table net.gone rename to http_request_queue";
    database.batch_execute(back).await.unwrap();
    caller.node.app.database_calls.wake();
    queue(&caller, "/back", 1).await;
    caller.receiver.until("/back", 1).await;
}
