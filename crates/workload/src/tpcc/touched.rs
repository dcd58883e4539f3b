//! What the statements read and write, written down by hand after the benchmark and not after their SQL: what an analysis of that must
//! have foreseen.

use super::memory::Memory;
use super::statement::Statement;
use crate::catalogue::StatementId;
use crate::value::Value;

/// Rows of a table that a statement reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The table.
    pub table: &'static str,
    /// What is known of the rows: columns with their values.
    pub known: Vec<(&'static str, i64)>,
    /// A column whose values are at least the first of these and below the second.
    pub within: Option<(&'static str, i64, i64)>,
    /// What is done to them.
    pub how: How,
}

/// What is done to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is found out which there are, and these columns of them are read.
    Reads(&'static [&'static str]),
    /// These columns change.
    Changes(&'static [&'static str]),
    /// A row appears.
    Adds,
    /// A row goes.
    Removes,
}

impl Touched {
    /// Whether one reads what the other writes, or both write it.
    #[must_use]
    pub fn conflicts(&self, other: &Touched) -> bool {
        let overlap = |a: &[&str], b: &[&str]| a.iter().any(|column| b.contains(column));
        let how = match (self.how, other.how) {
            (How::Reads(_), How::Reads(_)) => false,
            (How::Reads(a) | How::Changes(a), How::Changes(b)) | (How::Changes(a), How::Reads(b)) => {
                overlap(a, b)
            }
            (How::Adds, How::Changes(_)) | (How::Changes(_), How::Adds) => false,
            (How::Adds | How::Removes, _) | (_, How::Adds | How::Removes) => true,
        };
        how && self.table == other.table && self.may_be(other) && other.may_be(self)
    }

    /// Whether some row may be meant by both, by what this one knows of its rows.
    fn may_be(&self, other: &Touched) -> bool {
        self.known.iter().all(|(column, value)| {
            let differs = other.known.iter().any(|(known, theirs)| known == column && theirs != value);
            let is_out =
                other.within.is_some_and(|(known, from, to)| known == *column && !(from..to).contains(value));
            !differs && !is_out
        })
    }
}

const ADDRESS_OF_DISTRICT: &[&str] = &["d_name", "d_street_1", "d_street_2", "d_city", "d_state", "d_zip"];

impl Memory {
    /// What a statement touches if it is executed now.
    pub fn touched(&mut self, statement: StatementId, params: &[Value]) -> Vec<Touched> {
        let Some(statement) = Statement::from_id(statement) else { return Vec::new() };
        let int = |place: usize| params.get(place).and_then(Value::as_int).unwrap_or(0);
        let touched = |table, known: &[(&'static str, i64)], how| Touched {
            table,
            known: known.to_vec(),
            within: None,
            how,
        };
        let warehouse = [("w_id", int(0))];
        let district = [("d_w_id", int(0)), ("d_id", int(1))];
        let customer = |c| [("c_w_id", int(0)), ("c_d_id", int(1)), ("c_id", c)];
        let order = [("o_w_id", int(0)), ("o_d_id", int(1)), ("o_id", int(2))];
        let lines = [("ol_w_id", int(0)), ("ol_d_id", int(1)), ("ol_o_id", int(2))];
        let stock = [("s_w_id", int(0)), ("s_i_id", int(1))];
        let both = |table, known: &[(&'static str, i64)], reads, changes| {
            vec![touched(table, known, How::Reads(reads)), touched(table, known, How::Changes(changes))]
        };
        match statement {
            Statement::NewOrderWarehouse => vec![touched("warehouse", &warehouse, How::Reads(&["w_tax"]))],
            Statement::NewOrderDistrict => {
                both("district", &district, &["d_tax", "d_next_o_id"], &["d_next_o_id"])
            }
            Statement::NewOrderCustomer => {
                vec![touched(
                    "customer",
                    &customer(int(2)),
                    How::Reads(&["c_discount", "c_last", "c_credit"]),
                )]
            }
            Statement::NewOrderOrder => {
                let new = [("o_w_id", int(2)), ("o_d_id", int(1)), ("o_id", int(0)), ("o_c_id", int(3))];
                let owner = [("c_w_id", int(2)), ("c_d_id", int(1)), ("c_id", int(3))];
                vec![touched("orders", &new, How::Adds), touched("customer", &owner, How::Reads(&[]))]
            }
            Statement::NewOrderMark => {
                let new = [("no_w_id", int(2)), ("no_d_id", int(1)), ("no_o_id", int(0))];
                vec![touched("new_order", &new, How::Adds)]
            }
            Statement::NewOrderItem => {
                vec![touched("item", &[("i_id", int(0))], How::Reads(&["i_price", "i_name", "i_data"]))]
            }
            Statement::NewOrderStock => {
                vec![touched("stock", &stock, How::Reads(&["s_quantity", "s_data", "s_dist"]))]
            }
            Statement::NewOrderSetStock => {
                let set = &["s_quantity", "s_ytd", "s_order_cnt", "s_remote_cnt"];
                both("stock", &stock, &["s_ytd", "s_order_cnt", "s_remote_cnt"], set)
            }
            Statement::NewOrderLine => {
                let new =
                    [("ol_w_id", int(2)), ("ol_d_id", int(1)), ("ol_o_id", int(0)), ("ol_number", int(3))];
                let from = [("s_w_id", int(5)), ("s_i_id", int(4))];
                vec![touched("order_line", &new, How::Adds), touched("stock", &from, How::Reads(&[]))]
            }
            Statement::PaymentWarehouse => {
                let shown = &["w_name", "w_street_1", "w_street_2", "w_city", "w_state", "w_zip", "w_ytd"];
                both("warehouse", &warehouse, shown, &["w_ytd"])
            }
            Statement::PaymentDistrict => {
                let mut all = both("district", &district, &["d_ytd"], &["d_ytd"]);
                all.push(touched("district", &district, How::Reads(ADDRESS_OF_DISTRICT)));
                all
            }
            Statement::PaymentByName | Statement::OrderStatusByName => {
                let shown: &[&str] = match statement {
                    Statement::PaymentByName => &["c_first", "c_last"],
                    _ => &["c_first", "c_last", "c_middle", "c_balance"],
                };
                let name = params.get(2).and_then(Value::as_text).unwrap_or_default();
                let found = self.customers_named(int(0), int(1), name);
                found.into_iter().map(|c| touched("customer", &customer(c), How::Reads(shown))).collect()
            }
            Statement::PaymentCustomer => {
                let shown = &["c_first", "c_last", "c_credit", "c_discount", "c_balance", "c_data"];
                vec![touched("customer", &customer(int(2)), How::Reads(shown))]
            }
            Statement::PaymentPay => {
                let set = &["c_balance", "c_ytd_payment", "c_payment_cnt"];
                both("customer", &customer(int(2)), set, set)
            }
            Statement::PaymentData => vec![touched("customer", &customer(int(2)), How::Changes(&["c_data"]))],
            Statement::PaymentHistory => vec![touched("history", &[("h_id", int(0))], How::Adds)],
            Statement::OrderStatusCustomer => {
                let shown = &["c_first", "c_middle", "c_last", "c_balance"];
                vec![touched("customer", &customer(int(2)), How::Reads(shown))]
            }
            Statement::OrderStatusOrder => {
                let theirs = [("o_w_id", int(0)), ("o_d_id", int(1)), ("o_c_id", int(2))];
                let mut all = vec![touched("orders", &theirs, How::Reads(&[]))];
                if let Some(last) = self.last_order(int(0), int(1), int(2)) {
                    let last = [theirs[0], theirs[1], theirs[2], ("o_id", last)];
                    all.push(touched("orders", &last, How::Reads(&["o_entry_d", "o_carrier_id"])));
                }
                all
            }
            Statement::OrderStatusLines => {
                let shown = &["ol_i_id", "ol_supply_w_id", "ol_quantity", "ol_amount", "ol_delivery_d"];
                vec![touched("order_line", &lines, How::Reads(shown))]
            }
            Statement::DeliveryOldest => {
                let waiting = [("no_w_id", int(0)), ("no_d_id", int(1))];
                vec![touched("new_order", &waiting, How::Reads(&[]))]
            }
            Statement::DeliveryTake => {
                let oldest = [("no_w_id", int(0)), ("no_d_id", int(1)), ("no_o_id", int(2))];
                vec![
                    touched("new_order", &oldest, How::Reads(&[])),
                    touched("new_order", &oldest, How::Removes),
                ]
            }
            Statement::DeliveryCustomer => vec![touched("orders", &order, How::Reads(&["o_c_id"]))],
            Statement::DeliveryCarrier => {
                let recipient = self.recipient(int(0), int(1), int(2));
                let known = [order[0], order[1], order[2], ("o_c_id", recipient)];
                both("orders", &known, &[], &["o_carrier_id"])
            }
            Statement::DeliveryLines => both("order_line", &lines, &[], &["ol_delivery_d"]),
            Statement::DeliveryTotal => vec![touched("order_line", &lines, How::Reads(&["ol_amount"]))],
            Statement::DeliveryCredit => {
                let set = &["c_balance", "c_delivery_cnt"];
                both("customer", &customer(int(2)), set, set)
            }
            Statement::StockLevelDistrict => {
                vec![touched("district", &district, How::Reads(&["d_next_o_id"]))]
            }
            Statement::StockLevelCount => {
                let last = Touched {
                    within: Some(("ol_o_id", int(3), int(2))),
                    ..touched("order_line", &lines[..2], How::Reads(&["ol_i_id"]))
                };
                let items = self.items_of(int(0), int(1), int(3)..int(2));
                let stock = |item| {
                    touched("stock", &[("s_w_id", int(0)), ("s_i_id", item)], How::Reads(&["s_quantity"]))
                };
                std::iter::once(last).chain(items.into_iter().map(stock)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: [(&str, i64); 2] = [("ol_w_id", 1), ("ol_o_id", 7)];

    fn lines(known: &[(&'static str, i64)], how: How) -> Touched {
        Touched { table: "order_line", known: known.to_vec(), within: None, how }
    }

    #[test]
    fn who_reads_a_range_conflicts_with_who_adds_a_row_to_it_and_with_nobody_beside_it() {
        let last = |from, to| Touched {
            within: Some(("ol_o_id", from, to)),
            ..lines(&ORDER[..1], How::Reads(&["ol_i_id"]))
        };
        let new = lines(&ORDER, How::Adds);
        assert!(last(1, 8).conflicts(&new) && new.conflicts(&last(7, 8)));
        assert!(!last(1, 7).conflicts(&new) && !new.conflicts(&last(8, 9)));
    }

    #[test]
    fn who_reads_a_column_conflicts_with_who_changes_it_and_not_with_who_changes_another() {
        let reads = lines(&ORDER, How::Reads(&["ol_amount"]));
        let changes = |column| lines(&ORDER[..1], How::Changes(column));
        assert!(reads.conflicts(&changes(&["ol_amount"])) && !reads.conflicts(&changes(&["ol_delivery_d"])));
        assert!(!reads.conflicts(&reads) && reads.conflicts(&lines(&ORDER, How::Removes)));
    }
}
