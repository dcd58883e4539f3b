//! The bookstore's transactions, each by itself and whole: beside the paper's benchmark, what conflicts and costs as an application does.

use onecopy_core::item::ValueHash;
use onecopy_core::{Access, Mode};
use onecopy_sim::perf::{Bookstore, Profile, Transaction, Transactions};
use onecopy_sim::sites::{Arriving, Source, Work};
use onecopy_workload::tpcw::{MixName, Scale};

/// Users who walk. Each is asked for one transaction in turn, so at thousands a second a second or more lies between two of the same user, who has an answer by then.
const USERS: u32 = 10_000;
/// Transactions of each user that nobody executes: who has just come does not yet do what the mix says.
const BEFORE: u32 = 30;
/// Books, and browsers that customers are counted for.
const SCALE: (i64, i64) = (1_000, 10);
/// What statements cost on the machine that this was developed on.
const PROFILE: &str = "2026";

pub(super) struct Visits {
    transactions: Transactions,
    drawn: u64,
}

impl Visits {
    /// # Errors
    /// If the bookstore has changed since its costs were measured.
    pub(super) fn new(mix: MixName, seed: u64) -> Result<Visits, String> {
        let scale = Scale::new(SCALE.0, SCALE.1).map_err(|error| error.to_string())?;
        let profile =
            Profile::named(PROFILE, "tpcw").ok_or_else(|| format!("there is no profile {PROFILE}"))?;
        let bookstore = Box::new(Bookstore::new(mix, scale));
        let transactions = Transactions::new(bookstore, &profile, seed, USERS);
        let mut transactions = transactions.map_err(|error| error.to_string())?;
        for _ in 0..BEFORE * USERS {
            transactions.draw();
        }
        Ok(Visits { transactions, drawn: 0 })
    }

    /// What to commit costs, in nanoseconds.
    pub(super) fn commit_ns(&self) -> u64 {
        self.transactions.commit_ns()
    }
}

impl Source for Visits {
    fn next(&mut self) -> Arriving {
        let (user, transaction) = (self.drawn % u64::from(USERS), self.transactions.draw());
        self.drawn += 1;
        let work =
            Work { execute_ns: transaction.executing_ns, apply_ns: self.transactions.apply_ns(&transaction) };
        let Transaction { access, writes, .. } = transaction;
        // Two that add rows may come in any order, so these are not looked at.
        let changes = access.iter().filter(|of| of.mode.writes() && of.mode != Mode::Insert);
        let mut registers: Vec<u64> = changes.map(register).collect();
        registers.sort_unstable();
        registers.dedup();
        if writes && registers.is_empty() {
            registers.push(self.drawn);
        }
        Arriving {
            access,
            reads: registers.clone(),
            writes: registers,
            fails: false,
            fails_in_place: false,
            // They read what they go by.
            only_writes: false,
            work: Some(work),
            user: Some(user),
        }
    }
}

/// One for each item, and none of the small ones.
fn register(access: &Access) -> u64 {
    let mut bytes = Vec::new();
    bytes.extend(access.item.table.0.to_le_bytes());
    for (column, value) in &access.item.equals {
        bytes.extend(column.0.to_le_bytes());
        bytes.extend(value.0.to_le_bytes());
    }
    ValueHash::of_bytes(&bytes).0 | 1 << 63
}
