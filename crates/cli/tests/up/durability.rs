//! A cluster that is served with its decisions on disk and in memory in turn.

use super::clients::{block_on, connect, json, rows};
use super::{Up, folder};
use onecopy_cluster::ClusterFile;

#[test]
fn what_was_committed_under_one_durability_is_there_under_the_other() {
    let dir = folder();
    for (turn, durability) in ["memory", "disk", "memory"].into_iter().enumerate() {
        let mut command = Up::command(dir.path(), 2);
        command.args(["--durability", durability]);
        let mut up = Up::ready_by(command);
        let dsn = ClusterFile::read(dir.path()).unwrap().client.dsn;
        block_on(async {
            let client = connect(&dsn).await;
            client.batch_execute("CREATE TABLE IF NOT EXISTS turns (number int)").await.unwrap();
            client.batch_execute(&format!("INSERT INTO turns VALUES ({turn})")).await.unwrap();
            assert_eq!(rows(&client, "SELECT count(*) FROM turns").await, (turn + 1).to_string());
        });
        assert_eq!(json(dir.path(), &["verify"])["identical"], true);
        up.signal("-TERM");
        assert!(up.process.wait().unwrap().success());
    }
}
