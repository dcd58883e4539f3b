//! What the demo prints at its end.

use onecopy_bench::site::{Latency, Report};
use onecopy_core::Status;
use std::fmt;

/// What the demo has shown: customers' view, each server's share, who had to wait, and whether all copies are equal.
#[derive(Clone, Debug)]
pub struct DemoReport<'a> {
    /// The bookstore through onecopy.
    pub through: &'a Report,
    /// The same customers on one plain server, asked directly.
    pub direct: Option<&'a Report>,
    /// The servers' names, in the order of the statuses.
    pub names: &'a [String],
    /// The counters before the customers came.
    pub before: &'a Status,
    /// The counters after they had gone.
    pub after: &'a Status,
    /// What the comparison of all servers' contents found.
    pub copies: Copies,
}

/// What a comparison of all servers' contents found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Every table holds the same rows on every server.
    Identical {
        /// The last commit, which all of them contain.
        csn: u64,
        /// Tables compared.
        tables: u64,
    },
    /// Some do not.
    Differ {
        /// The servers, and what differs there.
        replicas: Vec<String>,
    },
    /// Servers out of service could not be compared.
    Incomplete {
        /// Their names.
        missing: Vec<String>,
    },
}

impl fmt::Display for DemoReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.customers(f)?;
        self.servers(f)?;
        self.waiting(f)?;
        match &self.copies {
            Copies::Identical { csn, tables } => {
                let (csn, servers) = (grouped(*csn), self.names.len());
                writeln!(
                    f,
                    "Copies\n  all {servers} servers are identical at commit {csn}: {tables} tables, all rows"
                )
            }
            Copies::Differ { replicas } => {
                writeln!(f, "Copies\n  THEY DIFFER, which is a bug of onecopy: {}", replicas.join("; "))
            }
            Copies::Incomplete { missing } => {
                writeln!(f, "Copies\n  not all could be compared: {} out of service", missing.join(", "))
            }
        }
    }
}

impl DemoReport<'_> {
    fn customers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { clients, seconds, wips, latency, .. } = self.through;
        writeln!(f, "Customers")?;
        writeln!(f, "  {clients} in the bookstore for {seconds:.0} s: {wips:.1} pages a second")?;
        writeln!(f, "  response time, ms: {}", Times(latency))?;
        if let Some(direct) = self.direct {
            let cost = latency.mean_ms / direct.latency.mean_ms.max(f64::MIN_POSITIVE);
            writeln!(f, "  asked directly:    {}", Times(&direct.latency))?;
            writeln!(f, "  through onecopy a page takes {cost:.2} times as long")?;
        }
        let (failed, retried) = (grouped(self.through.failed()), grouped(self.through.retried()));
        writeln!(f, "  failed pages: {failed}, transactions tried again: {retried}\n")
    }

    fn servers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<ServerLine> = (0..self.names.len()).map(|index| self.server(index)).collect();
        let reads: u64 = lines.iter().map(|line| line.reads).sum();
        writeln!(f, "Servers   reads served        writes executed   commits applied   contains commit")?;
        for ServerLine { name, reads: ours, executed, applied, contains } in lines {
            let share = 100.0 * ours as f64 / reads.max(1) as f64;
            let [ours, executed, applied, contains] = [ours, executed, applied, contains].map(grouped);
            writeln!(
                f,
                "  {name:<6} {ours:>11} ({share:>4.1} %) {executed:>17} {applied:>17} {contains:>17}"
            )?;
        }
        writeln!(f)
    }

    fn server(&self, index: usize) -> ServerLine<'_> {
        let before = self.before.replicas.get(index).cloned().unwrap_or_default();
        let after = self.after.replicas.get(index).cloned().unwrap_or_default();
        ServerLine {
            name: &self.names[index],
            reads: after.reads.saturating_sub(before.reads),
            executed: after.home_statements.saturating_sub(before.home_statements),
            applied: after.applies.saturating_sub(before.applies),
            contains: after.applied,
        }
    }

    fn waiting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since =
            |counter: fn(&Status) -> u64| grouped(counter(self.after).saturating_sub(counter(self.before)));
        writeln!(f, "Conflicts")?;
        writeln!(f, "  {:>9}  reads ran without a lock", since(|s| s.reads_placed))?;
        writeln!(f, "  {:>9}  statements waited for a server to catch up", since(|s| s.freshness_waits))?;
        writeln!(f, "  {:>9}  requests of transactions for rows met nobody", since(|s| s.grants_at_once))?;
        writeln!(f, "  {:>9}  waited for another transaction", since(|s| s.grants_waited))?;
        let given_up = |s: &Status| s.deadlocks + s.reads_changed;
        writeln!(f, "  {:>9}  transactions were given up for a conflict\n", since(given_up))
    }
}

struct ServerLine<'a> {
    name: &'a str,
    reads: u64,
    /// Statements of update transactions whose home it was.
    executed: u64,
    applied: u64,
    contains: u64,
}

struct Times<'a>(&'a Latency);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { mean_ms, p50_ms, p90_ms, p99_ms, max_ms, .. } = self.0;
        write!(
            f,
            "mean {mean_ms:.1}, half {p50_ms:.1}, 90 % {p90_ms:.1}, 99 % {p99_ms:.1}, longest {max_ms:.1}"
        )
    }
}

/// 1234567 as "1,234,567".
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_bench::site::{Counted, Protocol};
    use onecopy_core::protocol::ReplicaStatus;
    use snapbox::{assert_data_eq, str};

    fn run(mean_ms: f64, wips: f64) -> Report {
        let latency = Latency {
            mean_ms,
            p50_ms: mean_ms / 2.0,
            p90_ms: 20.0,
            p95_ms: 30.0,
            p99_ms: 41.5,
            max_ms: 103.0,
        };
        Report {
            site: "TPC-W".into(),
            command: "tpcw".into(),
            target: "127.0.0.1:6432/postgres".into(),
            server_version: "15.18".into(),
            mix: "shopping".into(),
            scale: [("items".into(), 1000), ("browsers".into(), 1)].into(),
            users: "customers".into(),
            clients: 50,
            connections: 50,
            think_factor: 0.1,
            protocol: Protocol::Prepared,
            whole: false,
            isolation: None,
            seed: 1,
            seconds: 30.0,
            wips,
            metric: "WIPS".into(),
            completed: 2100,
            taken_back: 0,
            statements: 9000,
            transactions: 3000,
            latency,
            longest_stall_ms: 103.0,
            pages: Vec::new(),
            errors: Vec::new(),
            retries: vec![Counted { code: "40001".into(), count: 2 }],
            measures: Default::default(),
            remark: None,
            series: Vec::new(),
            samples: Vec::new(),
        }
    }

    fn status(times: u64) -> Status {
        let replica = |reads: u64| ReplicaStatus {
            up: true,
            applied: 412 * times,
            reads: reads * times,
            home_statements: 150 * times,
            applies: 275 * times,
            ..ReplicaStatus::default()
        };
        Status {
            replicas: vec![replica(1000), replica(1200), replica(999)],
            reads_placed: 3199 * times,
            freshness_waits: 14 * times,
            grants_at_once: 2222 * times,
            grants_waited: 17 * times,
            deadlocks: times,
            ..Status::default()
        }
    }

    #[test]
    fn report_shows_the_difference_between_the_statuses() {
        let names = ["r1", "r2", "r3"].map(String::from);
        let (through, direct) = (run(12.3, 70.25), run(8.2, 71.0));
        let report = DemoReport {
            through: &through,
            direct: Some(&direct),
            names: &names,
            before: &status(1),
            after: &status(3),
            copies: Copies::Identical { csn: 1236, tables: 10 },
        };
        assert_data_eq!(
            report.to_string(),
            str![[r#"
Customers
  50 in the bookstore for 30 s: 70.2 pages a second
  response time, ms: mean 12.3, half 6.2, 90 % 20.0, 99 % 41.5, longest 103.0
  asked directly:    mean 8.2, half 4.1, 90 % 20.0, 99 % 41.5, longest 103.0
  through onecopy a page takes 1.50 times as long
  failed pages: 0, transactions tried again: 2

Servers   reads served        writes executed   commits applied   contains commit
  r1           2,000 (31.3 %)               300               550             1,236
  r2           2,400 (37.5 %)               300               550             1,236
  r3           1,998 (31.2 %)               300               550             1,236

Conflicts
      6,398  reads ran without a lock
         28  statements waited for a server to catch up
      4,444  requests of transactions for rows met nobody
         34  waited for another transaction
          2  transactions were given up for a conflict

Copies
  all 3 servers are identical at commit 1,236: 10 tables, all rows

"#]]
        );
    }

    #[test]
    fn copies_that_differ_are_not_to_be_overlooked() {
        let names = ["r1".to_owned()];
        let through = run(12.3, 70.25);
        let report = DemoReport {
            through: &through,
            direct: None,
            names: &names,
            before: &Status::default(),
            after: &Status::default(),
            copies: Copies::Differ { replicas: vec!["r2 DIFFERS: orders (contents)".into()] },
        };
        let text = report.to_string();
        assert!(text.contains("THEY DIFFER"), "{text}");
        assert!(text.ends_with("r2 DIFFERS: orders (contents)\n"), "{text}");
    }
}
