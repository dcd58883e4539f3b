//! TPC-C against real PostgreSQL servers.

use std::time::Duration;

use onecopy_bench::site::{self, Protocol};
use onecopy_bench::tpcc::{Options, Supplier};
use onecopy_cluster::Server;
use tokio_postgres::NoTls;

fn server() -> Server {
    Server::temporary(&onecopy_cluster::Options::replica()).unwrap()
}

fn options(server: &Server) -> Options {
    Options {
        target: server.dsn(),
        site: Supplier { warehouses: 2, customers: 30, ..Supplier::default() },
        clients: 8,
        think_factor: 0.0,
        ramp: Duration::from_millis(200),
        duration: Duration::from_secs(3),
        // PostgreSQL alone loses sales at its default level: two orders read the same stock.
        isolation: Some("repeatable read".to_owned()),
        progress: false,
        ..Options::default()
    }
}

async fn connect(server: &Server) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.dsn(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn terminals_meet_no_error_and_break_no_condition_and_the_report_says_how_small_it_is() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let options = Options { results: Some(folder.path().to_owned()), ..options(&server) };
    let missing = site::run(&options).await.unwrap_err().to_string();
    assert!(missing.contains("no wholesale supplier") && missing.contains("--site tpcc"), "{missing}");

    let loaded = site::load(&options).await.unwrap();
    for (table, rows) in [("warehouse", 2), ("customer", 600), ("item", 1_000), ("new_order", 180)] {
        assert!(loaded.tables.contains(&(table.to_owned(), rows)), "{table}: {loaded}");
    }
    assert!(loaded.to_string().contains("not of the specification's size"), "{loaded}");
    let fresh = site::check(&options).await.unwrap();
    assert!(fresh.holds() && fresh.checked.len() == 14, "{fresh}");

    for (protocol, declare) in [(Protocol::Prepared, true), (Protocol::Simple, false)] {
        let report = site::run(&Options { protocol, declare, ..options.clone() }).await.unwrap();
        assert!(report.errors.is_empty(), "{report}");
        assert!(report.pages.iter().all(|page| page.completed > 0), "{report}");
        let entered = report.measures[Supplier::NEW_ORDERS] * report.seconds / 60.0;
        assert!(
            (entered + report.taken_back as f64 - report.pages[0].completed as f64).abs() < 0.01,
            "{report}"
        );
        assert!(report.to_string().contains("30 customers a district instead of 3,000"), "{report}");
        let check = site::check(&options).await.unwrap();
        assert!(check.holds(), "{check}");
    }
    let saved = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert!(saved.file_name().unwrap().to_str().unwrap().starts_with("tpcc-standard-"));
    let json = std::fs::read_to_string(saved.join("report.json")).unwrap();
    assert!(json.contains(Supplier::NEW_ORDERS) && json.contains("\"warehouses\": 2"), "{json}");
}

#[tokio::test]
async fn a_change_behind_the_back_of_terminals_breaks_the_conditions_that_it_should() {
    let server = server();
    let options = options(&server);
    site::load(&options).await.unwrap();
    let client = connect(&server).await;
    // The conditions by their place, counted from 1; the last two are ours.
    for (change, back, broken) in [
        (
            "UPDATE warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 1",
            "UPDATE warehouse SET w_ytd = w_ytd - 1 WHERE w_id = 1",
            &[1, 8][..],
        ),
        (
            "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_id = 3 AND d_w_id = 2",
            "UPDATE district SET d_ytd = d_ytd - 1 WHERE d_id = 3 AND d_w_id = 2",
            &[1, 9],
        ),
        (
            "UPDATE district SET d_next_o_id = 40 WHERE d_id = 3 AND d_w_id = 2",
            "UPDATE district SET d_next_o_id = 31 WHERE d_id = 3 AND d_w_id = 2",
            &[2],
        ),
        (
            "DELETE FROM new_order WHERE no_o_id = 25 AND no_d_id = 1 AND no_w_id = 1",
            "INSERT INTO new_order VALUES (25, 1, 1)",
            &[3, 5, 11],
        ),
        (
            "UPDATE orders SET o_ol_cnt = o_ol_cnt + 1 WHERE o_id = 7 AND o_d_id = 1 AND o_w_id = 1",
            "UPDATE orders SET o_ol_cnt = o_ol_cnt - 1 WHERE o_id = 7 AND o_d_id = 1 AND o_w_id = 1",
            &[4, 6],
        ),
        (
            "UPDATE order_line SET ol_delivery_d = now() WHERE ol_o_id = 30 AND ol_d_id = 1 AND ol_w_id = 1",
            "UPDATE order_line SET ol_delivery_d = NULL WHERE ol_o_id = 30 AND ol_d_id = 1 AND ol_w_id = 1",
            &[7, 10, 12],
        ),
        (
            "UPDATE customer SET c_balance = c_balance + 1 WHERE c_id = 7 AND c_d_id = 1 AND c_w_id = 1",
            "UPDATE customer SET c_balance = c_balance - 1 WHERE c_id = 7 AND c_d_id = 1 AND c_w_id = 1",
            &[10, 12],
        ),
        (
            "UPDATE stock SET s_ytd = s_ytd + 4 WHERE s_i_id = 7 AND s_w_id = 1",
            "UPDATE stock SET s_ytd = s_ytd - 4 WHERE s_i_id = 7 AND s_w_id = 1",
            &[13],
        ),
        // A sale that another one overwrote: it is counted, and the quantity does not show it.
        (
            "UPDATE stock SET s_ytd = s_ytd + 4, s_order_cnt = s_order_cnt + 1 WHERE s_i_id = 7 AND s_w_id = 1",
            "UPDATE stock SET s_ytd = s_ytd - 4, s_order_cnt = s_order_cnt - 1 WHERE s_i_id = 7 AND s_w_id = 1",
            &[13, 14],
        ),
    ] {
        client.batch_execute(change).await.unwrap();
        let report = site::check(&options).await.unwrap();
        let found: Vec<usize> = (1..)
            .zip(&report.checked)
            .filter(|(_, checked)| checked.violations > 0)
            .map(|(place, _)| place)
            .collect();
        assert_eq!(found, broken, "{change}: {report}");
        client.batch_execute(back).await.unwrap();
    }
    assert!(site::check(&options).await.unwrap().holds());
}
