//! TPC-C's transactions as whole texts, which only onecopy understands: they write what the same transactions write that are sent
//! statement by statement, and keep the supplier's conditions while many run at once.

use super::clients::{block_on, connect, rows};
use super::scheduled::Scheduled;
use onecopy_bench::Workplace;
use onecopy_bench::chains::{self, Target};
use onecopy_bench::site;
use onecopy_bench::tpcc::{Options, Supplier};
use onecopy_cluster::Server;
use onecopy_workload::client::{Rows, Script, Step};
use onecopy_workload::tpcc::{
    Customer, Generator, HomeWarehouse, Kind, Parameters, Population, Scale, TAKEN_BACK, Transaction,
    catalogue, whole,
};
use onecopy_workload::{Timestamp, Value};
use std::time::Duration;
use tokio_postgres::{Client, SimpleQueryMessage};

const WAREHOUSES: i64 = 2;
const CUSTOMERS: i64 = 30;

fn options(dsn: &str) -> Options {
    Options {
        target: dsn.to_owned(),
        site: Supplier { warehouses: WAREHOUSES, customers: CUSTOMERS, ..Supplier::default() },
        clients: 12,
        think_factor: 0.0,
        ramp: Duration::ZERO,
        duration: Duration::from_secs(5),
        whole: true,
        progress: false,
        ..Options::default()
    }
}

/// Loads a supplier that is the same whenever it is loaded.
async fn load(dsn: &str) -> Client {
    site::load(&options(dsn)).await.unwrap();
    let client = connect(dsn).await;
    for (column, table) in [
        ("c_since", "customer"),
        ("h_date", "history"),
        ("o_entry_d", "orders"),
        ("ol_delivery_d", "order_line"),
    ] {
        let update = format!("UPDATE {table} SET {column} = '2020-01-01' WHERE {column} IS NOT NULL");
        client.batch_execute(&update).await.unwrap();
    }
    client
}

/// What is given for so many transactions, with more orders that are taken back than usual, and a customer whom nobody knows.
fn drawn(count: usize) -> Vec<Parameters> {
    let population = Population::new(Scale::new(WAREHOUSES, CUSTOMERS).unwrap(), 1, Timestamp::default());
    let highest = population.highest_history();
    let mut generator = Generator::new(&population, HomeWarehouse::Uniform, 7, 0, 1, highest);
    let draw = |turn| {
        let now = Timestamp { micros: 2_000_000_000_000_000 + turn as i64 };
        let mut given = generator.draw(Kind::ALL[turn % Kind::ALL.len()], now);
        match &mut given {
            Parameters::NewOrder(order) if turn % 4 == 0 => {
                order.is_taken_back = true;
                order.lines.last_mut().unwrap().item = Scale::new(WAREHOUSES, CUSTOMERS).unwrap().items() + 1;
            }
            Parameters::Payment(payment) if turn == 1 => {
                payment.customer = Customer::LastName("NOBODY".to_owned());
            }
            _ => {}
        }
        given
    };
    (0..count).map(draw).collect()
}

/// Executes a transaction statement by statement; whether it committed.
async fn interactively(client: &Client, given: Parameters) -> bool {
    let mut transaction = Transaction::new(given);
    let mut rows = None;
    client.batch_execute("BEGIN").await.unwrap();
    loop {
        let end = match transaction.next(rows.take()) {
            Step::Execute(id, params) => {
                let sql = catalogue().statement(id).with_literals(&params);
                rows = Some(answer(client.simple_query(&sql).await.unwrap()));
                continue;
            }
            Step::Commit => "COMMIT",
            Step::Rollback => "ROLLBACK",
        };
        client.batch_execute(end).await.unwrap();
        return end == "COMMIT";
    }
}

fn answer(messages: Vec<SimpleQueryMessage>) -> Rows {
    let mut answer = Rows::default();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let value = |column| row.get(column).map_or(Value::Null, Value::from);
                answer.rows.push((0..row.len()).map(value).collect());
            }
            SimpleQueryMessage::CommandComplete(count) => answer.count = count,
            _ => {}
        }
    }
    answer
}

/// Executes a transaction as one text; whether it committed, or failed as one that is to be taken back.
async fn whole_at(client: &Client, given: &Parameters) -> bool {
    let text = whole(given, "BEGIN").text;
    let Err(error) = client.batch_execute(&text).await else { return true };
    assert_eq!(error.code().map(|code| code.code()), Some(TAKEN_BACK), "{text}: {error:?}");
    client.batch_execute("ROLLBACK").await.unwrap();
    false
}

#[test]
fn whole_transactions_write_what_the_same_ones_write_statement_by_statement() {
    block_on(async {
        let cluster = Scheduled::start("chains", 2);
        let server = Server::temporary(&onecopy_cluster::Options::replica()).unwrap();
        let (ours, plain) = (load(cluster.dsn()).await, load(&server.dsn()).await);
        let mut taken_back = 0;
        for (turn, given) in drawn(300).into_iter().enumerate() {
            let committed = whole_at(&ours, &given).await;
            assert_eq!(committed, interactively(&plain, given).await, "{turn}");
            taken_back += usize::from(!committed);
        }
        assert!(taken_back >= 16, "15 orders and the payment of somebody whom nobody knows: {taken_back}");
        for table in &catalogue().tables {
            let sql = format!("SELECT {0}::text FROM {0} ORDER BY 1", table.name);
            let (ours, theirs) = (rows(&ours, &sql).await, rows(&plain, &sql).await);
            assert!(!theirs.is_empty() || table.name == "new_order", "{}", table.name);
            let differs = ours.split("), (").zip(theirs.split("), (")).find(|(one, other)| one != other);
            assert!(ours == theirs, "{}: {differs:?}", table.name);
        }
        // Districts ran out of orders to deliver, and customers with bad credit paid.
        let none_left = "SELECT count(*) FROM district WHERE NOT EXISTS (SELECT FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id)";
        assert_ne!(rows(&plain, none_left).await, "0");
        let noted = "SELECT count(*) FROM customer WHERE c_credit = 'BC' AND c_payment_cnt > 1";
        assert_ne!(rows(&plain, noted).await, "0");
        cluster.assert_identical();
    });
}

#[test]
fn terminals_that_send_whole_transactions_keep_the_conditions_on_three_replicas() {
    block_on(async {
        for protocol in ["chains", "centralised_writes"] {
            let cluster = Scheduled::start(protocol, 3);
            let options = options(cluster.dsn());
            site::load(&options).await.unwrap();
            let report = site::run(&options).await.unwrap();
            assert!(report.errors.is_empty() && report.completed > 0, "{report}");
            assert!(report.pages.iter().all(|page| page.completed > 0), "{report}");
            let check = site::check(&options).await.unwrap();
            assert!(check.holds(), "{check}");
            cluster.assert_identical();
        }
    });
}

#[test]
fn whole_transactions_are_compared_with_a_server_side_by_side() {
    block_on(async {
        let options = chains::Options {
            targets: vec![Target::RepeatableRead, Target::Chains],
            rounds: 1,
            duration: Duration::from_secs(2),
            ramp: Duration::ZERO,
            supplier: options("").site,
            terminals: 6,
            workplace: Workplace {
                onecopy: env!("CARGO_BIN_EXE_onecopy").into(),
                progress: false,
                ..Workplace::default()
            },
            ..chains::Options::default()
        };
        let comparison = chains::run(&options).await.unwrap();
        assert!(comparison.holds() && comparison.left_out.is_empty(), "{comparison}");
        let sample = &comparison.samples[1];
        assert_eq!((sample.target, sample.work.len()), (Target::Chains, 3));
        assert!(sample.work.iter().all(|work| work.applies > 0), "{sample:?}");
        let trees: Vec<&str> = sample.cpu.iter().map(|usage| usage.name.as_str()).collect();
        assert_eq!(trees, ["middleware", "server 1", "server 2", "server 3", "terminals"]);
        // What the terminals spent cannot be told here: they share a process with other tests.
        assert!(sample.cpu[..4].iter().all(|usage| usage.seconds > 0.0), "{sample:?}");
    });
}
