//! `onecopy bench progress`.

use crate::CommandError;
use crate::output::print;
use onecopy_bench::progress::{self, Options, Part, Statements};
use onecopy_core::Csn;
use onecopy_runtime::bookkeeping;

/// Measure the bookkeeping of commits on a replica while somebody holds a snapshot open there.
///
/// A server of its own is started, and does nothing else. Prints the rate of each tenth; the last one takes turns with the first
/// one of a second server, and they are compared.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many commits.
    #[arg(long, default_value_t = 5_000_000)]
    commits: u64,
    /// Commits that share a database transaction: 64 as when a replica applies what others have executed, 1 as when
    /// it executes them itself.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    group: u64,
    /// Hold no snapshot, to compare.
    #[arg(long)]
    no_snapshot: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let statements = Statements {
            create: || bookkeeping::create_sql("benchmark", "secret", Csn(0)),
            advance: bookkeeping::ADVANCE,
            prune: |pruned, applied| bookkeeping::prune_sql(Csn(pruned), Csn(applied)),
            prune_every: bookkeeping::KEEP_ROWS,
        };
        let on_part: fn(&Part) = |part| eprintln!("{part}");
        let options = Options {
            commits: self.commits,
            group: self.group,
            snapshot: !self.no_snapshot,
            statements,
            on_part: Some(on_part),
        };
        let report = progress::run(&options).await?;
        if self.json { Ok(print(serde_json::to_string_pretty(&report)?)?) } else { Ok(print(report)?) }
    }
}
