//! `onecopy verify`.

use crate::CommandError;
use crate::console::{Compared, Console, REFERENCE, Table, Target};
use crate::output::print;
use serde_json::json;

/// Compare the full contents of all replicas at one commit; fails if they differ or one could not be compared.
///
/// Compared are rows, definitions, the places of sequences, roles, and settings of roles and the database, with the replica with which most agree. Writers are
/// held off until every replica has a snapshot of the same commit, not while contents are read. A replica that
/// differs stays in service unless --exclude names it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Take this replica out of service if it differs from another one; it comes back when it was copied anew.
    #[arg(long, value_name = "REPLICA")]
    exclude: Vec<String>,
}

impl Args {
    /// Asks a running onecopy and prints its verdict.
    ///
    /// # Errors
    /// When replicas differ, one of them is out of service, or onecopy cannot be asked.
    pub fn run(self) -> Result<(), CommandError> {
        let (compared, replicas, excluded) = self.target.ask(async |console| {
            let (compared, replicas) = (console.verify().await?, console.query("SHOW REPLICAS").await?);
            let mut excluded = Ok(());
            for name in &self.exclude {
                excluded = excluded.and(exclude(console, name, &compared).await);
            }
            Ok((compared, replicas, excluded))
        })?;
        let missing = not_compared(&replicas, &compared);
        let identical = missing.is_empty() && compared.iter().all(Compared::is_identical);
        if self.target.json {
            let replicas = table(&compared).json();
            let all = json!({ "identical": identical, "not_compared": missing, "replicas": replicas });
            print(format!("{all:#}"))?;
        } else {
            print(table(&compared))?;
        }
        excluded?;
        complaint(&compared, &missing, &self.exclude).map_or(Ok(()), |complaint| Err(complaint.into()))
    }
}

/// What is wrong, and what to do about it, once the replicas `excluded` have been taken out of service.
fn complaint(compared: &[Compared], missing: &[String], excluded: &[String]) -> Option<String> {
    let is_excluded = |one: &&Compared| excluded.contains(&one.replica);
    let differing: Vec<&Compared> = compared.iter().filter(|one| !one.is_identical()).collect();
    if differing.is_empty() {
        return (!missing.is_empty()).then(|| {
            format!(
                "out of service, and so not compared: {}; `onecopy status` shows the replicas, onecopy's messages say why",
                missing.join(", ")
            )
        });
    }
    let out = format!("the replicas differ; out of service until copied anew: {}", excluded.join(", "));
    if compared.iter().filter(is_excluded).any(|one| one.verdict == REFERENCE) {
        // Whether those differ from each other that remain was not compared.
        return Some(format!(
            "{out} ({COPYING}). The others were compared with one of these: run `onecopy verify` again"
        ));
    }
    let advised: Vec<String> = differing
        .iter()
        .filter(|one| !is_excluded(one))
        .map(|one| format!("`onecopy verify --exclude {}`", one.replica))
        .collect();
    if advised.is_empty() {
        return Some(format!("{out} ({COPYING})"));
    }
    Some(format!(
        "the replicas differ, and go on serving what they hold. If those are wrong that differ, take them out of service by \
         {}, and copy them anew from one that is right ({COPYING})",
        advised.join(" and ")
    ))
}

/// How that is done.
const COPYING: &str = "`onecopy replica replace`; docs/operation.md, \"Replicas that come and go\"";

/// Takes a replica out of service if that was found to differ from another one.
async fn exclude(console: &Console, name: &str, compared: &[Compared]) -> Result<(), CommandError> {
    let Some(found) = compared.iter().find(|one| one.replica == name) else {
        let names: Vec<&str> = compared.iter().map(|one| one.replica.as_str()).collect();
        return Err(format!("\"{name}\" was not compared; these were: {}", names.join(", ")).into());
    };
    // If it is the one with which the others are compared, whether any of them differs.
    let is_reference = found.verdict == REFERENCE;
    if found.is_identical() && !(is_reference && compared.iter().any(|one| !one.is_identical())) {
        return Err(format!("{name} does not differ, and stays in service").into());
    }
    console.query(&format!("EXCLUDE {name}")).await.map(drop)
}

fn not_compared(replicas: &Table, compared: &[Compared]) -> Vec<String> {
    let names = (0..replicas.rows.len()).map(|row| replicas.cell(row, "name"));
    names
        .filter(|name| !compared.iter().any(|compared| compared.replica == *name))
        .map(str::to_owned)
        .collect()
}

fn table(compared: &[Compared]) -> Table {
    let row = |Compared { replica, csn, tables, verdict }: &Compared| {
        vec![replica.clone(), csn.to_string(), tables.to_string(), verdict.clone()]
    };
    Table {
        columns: ["replica", "csn", "tables", "verdict"].map(String::from).to_vec(),
        rows: compared.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_about_replicas_that_differ_from_one_that_still_serves() {
        let compared = |verdicts: [&str; 3]| -> Vec<Compared> {
            let of = |(at, verdict): (usize, &&str)| Compared {
                replica: format!("r{}", at + 1),
                csn: 7,
                tables: 1,
                verdict: (*verdict).to_owned(),
            };
            verdicts.iter().enumerate().map(of).collect()
        };
        let says = |verdicts, excluded: &[&str]| {
            let excluded: Vec<String> = excluded.iter().map(|name| (*name).to_owned()).collect();
            complaint(&compared(verdicts), &[], &excluded)
        };
        assert_eq!(says([REFERENCE, "identical", "identical"], &[]), None);
        let differ = [REFERENCE, "identical", "DIFFERS: public.t"];
        assert!(says(differ, &[]).unwrap().contains("`onecopy verify --exclude r3`"));
        let done = says(differ, &["r3"]).unwrap();
        assert!(done.contains("copied anew: r3 (") && !done.contains("--exclude"), "{done}");
        // Those that differ from the first may be right, and may differ from each other.
        let both = [REFERENCE, "DIFFERS: public.t", "DIFFERS: public.t"];
        let done = says(both, &["r1"]).unwrap();
        assert!(done.contains("copied anew: r1 (") && done.contains("`onecopy verify` again"), "{done}");
        assert!(!done.contains("--exclude"), "{done}");
        let missing = complaint(&compared(["identical", REFERENCE, "identical"]), &["r4".to_owned()], &[]);
        assert!(missing.unwrap().contains("not compared: r4"));
    }
}
