//! On a real server.

use std::sync::atomic::AtomicU32;

use super::super::apply::tests::Site;
use super::super::{Answer, Ran, describe};
use super::*;
use crate::record::{What, Write};
use crate::sites::transaction::{Part, Transaction};

fn record(user: &str, settings: &[(&str, &str)], statements: &[&str]) -> Record {
    let settings: Vec<(String, String)> =
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let writes = statements.iter().map(|sql| Write::new(What::Text((*sql).to_owned()))).collect();
    Record { user: user.to_owned(), settings: settings.into(), writes, ..Record::default() }
}

fn transaction(record: Record) -> Transaction {
    let parts = record.writes.iter().map(|_| Part::plain(false)).collect();
    Transaction::plain(record, parts)
}

const NOW: &str = "SELECT current_user, current_setting('DateStyle'), current_setting('application_name'), \
     current_setting('transaction_isolation'), current_setting('transaction_read_only')";

async fn cells(lane: &mut Lane, sql: &str) -> Vec<String> {
    lane.query(sql).await.unwrap().into_iter().flatten().flatten().collect()
}

#[tokio::test]
async fn a_transaction_runs_for_its_role_under_its_settings_and_leaves_none_of_them() {
    let site = Site::start().await;
    site.command("CREATE ROLE \"o'neil \"\"x\"").await;
    let mut lane = site.database.lend().await.unwrap();
    let before = cells(&mut lane, NOW).await;
    let settings = [("DateStyle", "SQL, DMY"), ("application_name", "it's \\ \"so\"")];
    let record = record("o'neil \"x", &settings, &[]);
    for begin_as in [Begin::Update { checks_at_once: true }, Begin::Query] {
        begin(&mut lane, &record, begin_as).await.unwrap();
        let (isolation, read_only) =
            if begin_as == Begin::Query { ("repeatable read", "on") } else { ("read committed", "off") };
        let found = cells(&mut lane, NOW).await;
        assert_eq!(found, ["o'neil \"x", "SQL, DMY", "it's \\ \"so\"", isolation, read_only]);
        lane.roll_back().await.unwrap();
        assert_eq!(cells(&mut lane, NOW).await, before);
    }
}

#[tokio::test]
async fn what_is_refused_is_said_to_have_not_begun_and_the_connection_goes_on() {
    let site = Site::start().await;
    let pid = AtomicU32::new(0);
    for (user, settings) in [("nobody", vec![]), ("ada", vec![("DateStyle", "no such style")])] {
        let refused = transaction(record(user, &settings, &["SELECT 1"]));
        let (lane, ran) = site.database.execute(None, &pid, &refused, Begin::Query, usize::MAX).await;
        assert!(matches!(&ran, Ok((Ran::NotBegun(_), _))), "{ran:?}");
        let mut lane = lane.unwrap();
        assert_eq!(cells(&mut lane, "SELECT current_user").await, ["postgres"], "nothing is open");
        begin(&mut lane, &record("ada", &[("DateStyle", "German")], &[]), Begin::Query).await.unwrap();
        assert_eq!(cells(&mut lane, "SELECT current_user").await, ["ada"]);
        lane.roll_back().await.unwrap();
        let plain = record("ada", &[], &[]);
        assert!(describe(&mut lane, &plain, "SELECT body FROM note", &[], None).await.is_ok());
        site.database.leave(lane).await;
    }
}

#[tokio::test]
async fn queries_end_with_their_batch_whether_they_fail_or_not() {
    let site = Site::start().await;
    let pid = AtomicU32::new(0);
    let is_idle = "SELECT now() = statement_timestamp()";
    for (statements, answered) in
        [(vec!["SELECT 1", "SELECT 2"], 2), (vec!["SELECT 1", "SELECT 1 / 0"], 1), (vec![], 0)]
    {
        let query = transaction(record("ada", &[], &statements));
        let (lane, ran) = site.database.execute(None, &pid, &query, Begin::Query, usize::MAX).await;
        let (Ran::Done(Answer { parts, .. }) | Ran::Failed(Answer { parts, .. })) = ran.unwrap().0 else {
            panic!("{statements:?}");
        };
        assert_eq!(parts.len(), answered);
        let mut lane = lane.unwrap();
        assert_eq!(cells(&mut lane, is_idle).await, ["t"]);
        site.database.give_back(lane);
    }
}

#[tokio::test]
async fn a_commit_notes_its_places_and_those_at_which_nothing_changed() {
    let site = Site::start().await;
    let contained = site.database.begin("log").await.unwrap();
    assert_eq!(contained.places.len(), 1);
    let id = |number| MessageId { node: 2, incarnation: 1 << 50, number };
    let mut lane = site.database.lend().await.unwrap();
    let update = record("ada", &[], &[]);
    begin(&mut lane, &update, Begin::Update { checks_at_once: false }).await.unwrap();
    lane.command("UPDATE note SET body = 'new'").await.unwrap();
    let nothing = [(Csn(2), id(8)), (Csn(1), id(7)), (Csn(2), id(8))];
    site.database.commit(lane, &[(Csn(3), id(9)), (Csn(4), id(10))], &nothing).await.unwrap();
    let contained = site.database.begin("log").await.unwrap();
    let places: Vec<_> = contained.places.into_iter().skip(1).collect();
    assert_eq!(places, [(Csn(1), id(7)), (Csn(2), id(8)), (Csn(3), id(9)), (Csn(4), id(10))]);
    assert_eq!(contained.unchanged, [Csn(1), Csn(2)].into());
    let mut lane = site.database.lend().await.unwrap();
    assert_eq!(cells(&mut lane, "SELECT DISTINCT body FROM ada.note").await, ["new"]);
    // What has failed is not committed.
    begin(&mut lane, &update, Begin::Update { checks_at_once: false }).await.unwrap();
    assert!(lane.command("SELECT 1 / 0").await.is_err());
    assert!(site.database.commit(lane, &[(Csn(5), id(11))], &[]).await.is_err());
}
