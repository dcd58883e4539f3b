//! What stands around a site's statements: BEGIN, and what is declared to the papers' protocols.

use std::collections::BTreeSet;
use std::sync::Arc;

use onecopy_workload::TransactionId;
use onecopy_workload::catalogue::{Catalogue, Statement, TableIndex, Transaction};

use crate::connection::Connection;

/// The texts of one run.
pub(crate) struct Texts {
    begin: String,
    /// By transaction: BEGIN with its tables, and with those of one that is usual; empty if nothing is declared.
    declared: Vec<[String; 2]>,
    /// By statement: a comment with the tables that are not used after it.
    last_uses: Arc<[String]>,
}

impl Texts {
    pub(crate) fn new(catalogue: &Catalogue, begin: &str, declare: bool) -> Texts {
        let (mut declared, mut last_uses) = (Vec::new(), Vec::new());
        if declare {
            let of = |transaction| declared_begin(catalogue, transaction, begin);
            declared = catalogue.transactions.iter().map(of).collect();
            last_uses =
                (0..catalogue.statements.len()).map(|place| last_use_comment(catalogue, place)).collect();
        }
        Texts { begin: begin.to_owned(), declared, last_uses: last_uses.into() }
    }

    /// BEGIN of a transaction; a usual one runs none of its rare statements.
    pub(crate) fn begin(&self, transaction: TransactionId, usual: bool) -> &str {
        self.declared.get(usize::from(transaction.0)).map_or(&self.begin, |texts| &texts[usize::from(usual)])
    }

    /// A connection that says last uses, if they are declared.
    pub(crate) fn on(&self, connection: Connection) -> Connection {
        connection.with_comments(self.last_uses.clone())
    }
}

fn declared_begin(catalogue: &Catalogue, transaction: &Transaction, begin: &str) -> [String; 2] {
    let text = |writes: &[TableIndex]| {
        // Of a table that is read and written, the writing counts.
        let all = transaction.reads.iter().chain(&transaction.writes);
        let reads: Vec<TableIndex> = all.filter(|table| !writes.contains(table)).copied().collect();
        let parts = [("tables", &reads[..]), ("writes", writes)];
        let parts = parts.iter().filter(|(_, tables)| !tables.is_empty());
        let parts: Vec<String> =
            parts.map(|(word, tables)| format!("{word}={}", names(catalogue, tables))).collect();
        format!("/* onecopy: {} */ {begin}", parts.join(" "))
    };
    [text(&transaction.writes), text(&transaction.writes_usual)]
}

/// The tables that no later statement of the transaction touches, those to which foreign keys refer included. A loop may come
/// round again, so what it uses last is let go with what follows it. What an earlier statement let go, or would have if it had not
/// been left out, is named again.
fn last_use_comment(catalogue: &Catalogue, place: usize) -> String {
    let statement = &catalogue.statements[place];
    let transaction = catalogue.transaction(statement.transaction);
    if statement.repeat.is_some() || !transaction.kind.is_bracketed() {
        return String::new();
    }
    let all = &catalogue.statements[transaction.statements.clone()];
    let later = &catalogue.statements[place + 1..transaction.statements.end];
    let touched = |statements: &[Statement]| -> BTreeSet<TableIndex> {
        statements.iter().flat_map(|statement| touched(catalogue, statement)).collect()
    };
    let done: Vec<TableIndex> = touched(all).difference(&touched(later)).copied().collect();
    if done.is_empty() {
        return String::new();
    }
    format!("/* onecopy: last={} */ ", names(catalogue, &done))
}

fn touched(catalogue: &Catalogue, statement: &Statement) -> Vec<TableIndex> {
    let referred = statement.writes.iter().flat_map(|table| &catalogue.table(*table).foreign_keys);
    let place = |name: &str| catalogue.tables.iter().position(|table| table.name == name);
    let referred = referred.filter_map(|key| place(&key.table)).map(|place| TableIndex(place as u16));
    statement.reads.iter().chain(&statement.writes).copied().chain(referred).collect()
}

fn names(catalogue: &Catalogue, tables: &[TableIndex]) -> String {
    let names: Vec<&str> = tables.iter().map(|table| catalogue.table(*table).name.as_str()).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use onecopy_workload::catalogue::StatementId;
    use onecopy_workload::tpcw::catalogue;

    use super::*;

    fn begins(texts: &Texts, transaction: &str) -> [String; 2] {
        let id = catalogue().transaction_id(transaction).unwrap();
        [false, true].map(|usual| texts.begin(id, usual).to_owned())
    }

    fn comment(texts: &Texts, statement: &str) -> String {
        let StatementId(place) = catalogue().statement_id(statement).unwrap();
        texts.last_uses.get(usize::from(place)).cloned().unwrap_or_default()
    }

    #[test]
    fn nothing_is_said_unless_it_is_to_be_declared() {
        let texts = Texts::new(catalogue(), "BEGIN", false);
        assert_eq!(begins(&texts, "buyc.order"), ["BEGIN", "BEGIN"]);
        assert_eq!(comment(&texts, "buyc.order.clear"), "");
    }

    #[test]
    fn a_usual_order_declares_its_address_as_read() {
        let [all, usual] = begins(&Texts::new(catalogue(), "BEGIN", true), "buyc.order");
        let written = |text: &str| text.split_once("writes=").unwrap().1.contains("address");
        assert!(all.ends_with("*/ BEGIN") && written(&all) && !written(&usual), "{all}; {usual}");
        assert!(usual.split_once("writes=").unwrap().0.contains("address"), "{usual}");
    }

    #[test]
    fn a_table_to_which_later_rows_refer_is_not_let_go() {
        let texts = Texts::new(catalogue(), "BEGIN", true);
        // Cards refer to countries.
        assert!(!comment(&texts, "buyc.order.country").contains("country"));
        assert!(comment(&texts, "buyc.order.card").contains("country"));
        // The loop over lines may come round again.
        assert_eq!(comment(&texts, "buyc.order.setstock"), "");
        // By itself a statement needs no such words.
        assert_eq!(comment(&texts, "home.greet.name"), "");
    }
}
