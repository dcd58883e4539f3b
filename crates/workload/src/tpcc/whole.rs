//! A transaction as one text, for servers that want to know all of it before it runs (docs/protocols/chains.md).
//!
//! It is made of the catalogue's statements: what its client gives stands there as constants, and what its client would compute from
//! results as expressions over `:column`, by `computed` and `whole_sql` of `data/tpcc.toml`. It writes what
//! [`Transaction`](super::Transaction) writes, and an order that is to be taken back fails by itself with [`TAKEN_BACK`].

use super::parameters::Parameters;
use super::rules::rules;
use super::statement::Statement;
use crate::catalogue;
use crate::client::Whole;
use crate::value::Value;

/// The SQLSTATE by which an order fails that is to be taken back, when it goes whole: the line's foreign key finds no such stock.
pub const TAKEN_BACK: &str = "23503";

/// The whole transaction, from `begin` (`BEGIN`, perhaps with an isolation level) to `COMMIT`.
pub fn whole(given: &Parameters, begin: &str) -> Whole {
    let catalogue = super::catalogue();
    let all = catalogue.transaction(given.kind().transaction()).statements.clone();
    let (mut text, mut statements) = (begin.to_owned(), 0);
    // Statements of one loop stand together.
    for body in catalogue.statements[all.clone()].chunk_by(|one, other| one.group == other.group) {
        for round in 0..given.rounds(body[0].group.as_deref()) {
            for statement in body.iter().filter(|statement| runs(given, statement)) {
                text.push_str(";\n");
                text.push_str(&one(given, statement, round));
                statements += 1;
            }
        }
    }
    text.push_str(";\nCOMMIT");
    Whole { text, statements }
}

/// Whether it runs for a customer who is named like this.
fn runs(given: &Parameters, statement: &catalogue::Statement) -> bool {
    let is = |each: Statement| statement.id == each.id();
    let is_by_name = given.value("c_last").is_some();
    if is(Statement::PaymentByName) || is(Statement::OrderStatusByName) {
        is_by_name
    } else {
        !(is(Statement::OrderStatusCustomer) && is_by_name)
    }
}

fn one(given: &Parameters, statement: &catalogue::Statement, round: usize) -> String {
    let mut computed = statement.computed.iter();
    let param = |name: &String| match name.as_str() {
        "?" => fill(computed.next().map_or("NULL", String::as_str), given, round),
        name => place(name, given, round),
    };
    let params: Vec<String> = statement.params.iter().map(param).collect();
    statement.whole_with(&params)
}

/// An expression with what stands for each `{name}` in it.
fn fill(expression: &str, given: &Parameters, round: usize) -> String {
    let mut filled = String::new();
    for (number, part) in expression.split('{').enumerate() {
        match part.split_once('}').filter(|_| number > 0) {
            Some((name, rest)) => {
                filled.push_str(&place(name, given, round));
                filled.push_str(rest);
            }
            None => filled.push_str(part),
        }
    }
    filled
}

/// What stands for a name; NULL for what nobody knows, which a test rules out.
fn place(name: &str, given: &Parameters, round: usize) -> String {
    let client = &rules().client;
    let figure = match name {
        "stock_min" => client.stock_min,
        "stock_delivery" => client.stock_delivery,
        "stock_orders" => client.stock_orders,
        "customer_data_max" => client.customer_data_max as i64,
        "dd" => return given.value("d").map_or_else(String::new, |d| format!("{:0>2}", d.to_string())),
        _ => return given_or_found(name, given, round),
    };
    figure.to_string()
}

fn given_or_found(name: &str, given: &Parameters, round: usize) -> String {
    match given.value_in_round(name, round) {
        None if name == "c" => ":c_id".to_owned(),
        value => {
            let mut literal = String::new();
            value.unwrap_or(Value::Null).write_literal(&mut literal);
            literal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::{
        Customer, Delivery, Generator, HomeWarehouse, Kind, NewOrder, OrderLine, OrderStatus, Payment,
        Population, Scale, StockLevel, catalogue,
    };
    use crate::value::Timestamp;

    #[track_caller]
    fn expect(given: Parameters, statements: &[&str]) {
        let Whole { text, statements: count } = whole(&given, "BEGIN");
        let inner = text.strip_prefix("BEGIN;\n").unwrap().strip_suffix(";\nCOMMIT").unwrap();
        assert_eq!(inner.split(";\n").collect::<Vec<_>>(), statements);
        assert_eq!(count as usize, statements.len());
    }

    const NOW: Timestamp = Timestamp { micros: 0 };

    #[test]
    fn new_order_computes_stock_and_amount_of_each_line() {
        let line = |supply, item, quantity| OrderLine { supply, item, quantity };
        let lines = vec![line(1, 77, 5), line(2, 8, 10)];
        let order = NewOrder { w: 1, d: 3, c: 42, lines, is_taken_back: false, now: NOW };
        expect(
            Parameters::NewOrder(order),
            &[
                "SELECT w_tax FROM warehouse WHERE w_id = 1",
                "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = 1 AND d_id = 3 RETURNING d_tax, d_next_o_id - 1 AS o_id",
                "SELECT c_discount, c_last, c_credit FROM customer WHERE c_w_id = 1 AND c_d_id = 3 AND c_id = 42",
                "INSERT INTO orders (o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local)\n\
                 VALUES (:o_id, 3, 1, 42, '1970-01-01 00:00:00.000000', NULL, 2, 0)",
                "INSERT INTO new_order (no_o_id, no_d_id, no_w_id) VALUES (:o_id, 3, 1)",
                "SELECT i_price, i_name, i_data FROM item WHERE i_id = 77",
                "SELECT s_quantity, s_data, s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10\n\
                 FROM stock WHERE s_w_id = 1 AND s_i_id = 77",
                "UPDATE stock SET s_quantity = :s_quantity - 5 + CASE WHEN :s_quantity - 5 < 10 THEN 91 ELSE 0 END, \
                 s_ytd = s_ytd + 5, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + 0\n\
                 WHERE s_w_id = 1 AND s_i_id = 77",
                "INSERT INTO order_line\n\
                 (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity, ol_amount, ol_dist_info)\n\
                 VALUES (:o_id, 3, 1, 1, 77, 1, NULL, 5, 5 * :i_price, :s_dist_03)",
                "SELECT i_price, i_name, i_data FROM item WHERE i_id = 8",
                "SELECT s_quantity, s_data, s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10\n\
                 FROM stock WHERE s_w_id = 2 AND s_i_id = 8",
                "UPDATE stock SET s_quantity = :s_quantity - 10 + CASE WHEN :s_quantity - 10 < 10 THEN 91 ELSE 0 END, \
                 s_ytd = s_ytd + 10, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + 1\n\
                 WHERE s_w_id = 2 AND s_i_id = 8",
                "INSERT INTO order_line\n\
                 (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity, ol_amount, ol_dist_info)\n\
                 VALUES (:o_id, 3, 1, 2, 8, 2, NULL, 10, 10 * :i_price, :s_dist_03)",
            ],
        );
    }

    fn payment(customer: Customer) -> Parameters {
        let (w, d, cw, cd) = (1, 10, 2, 4);
        Parameters::Payment(Payment { w, d, cw, cd, customer, amount_cents: 1_205, history: 900, now: NOW })
    }

    const PAID: [&str; 2] = [
        "UPDATE warehouse SET w_ytd = w_ytd + 12.05 WHERE w_id = 1 RETURNING w_name, w_street_1, w_street_2, w_city, w_state, w_zip",
        "UPDATE district SET d_ytd = d_ytd + 12.05 WHERE d_w_id = 1 AND d_id = 10\n\
         RETURNING d_name, d_street_1, d_street_2, d_city, d_state, d_zip",
    ];

    /// What follows of a payment by a customer who is this.
    fn paid_by(c: &str) -> [String; 4] {
        [
            format!(
                "SELECT c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone, c_since,\n\
                 c_credit, c_credit_lim, c_discount, c_balance, c_data\n\
                 FROM customer WHERE c_w_id = 2 AND c_d_id = 4 AND c_id = {c}"
            ),
            format!(
                "UPDATE customer SET c_balance = c_balance - 12.05, c_ytd_payment = c_ytd_payment + 12.05, c_payment_cnt = c_payment_cnt + 1\n\
                 WHERE c_w_id = 2 AND c_d_id = 4 AND c_id = {c}"
            ),
            format!(
                "UPDATE customer SET c_data = left({c}::text || ' 4 2 10 1 12.05 ' || coalesce(c_data, ''), 500) \
                 WHERE c_w_id = 2 AND c_d_id = 4 AND c_id = {c} AND :c_credit = 'BC'"
            ),
            format!(
                "INSERT INTO history (h_id, h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)\n\
                 VALUES (900, {c}, 4, 2, 10, 1, '1970-01-01 00:00:00.000000', 12.05, :w_name || '    ' || :d_name)"
            ),
        ]
    }

    #[test]
    fn payment_notes_something_only_of_customers_with_bad_credit() {
        let rest = paid_by("7");
        let rest = rest.iter().map(String::as_str);
        expect(payment(Customer::Number(7)), &PAID.into_iter().chain(rest).collect::<Vec<_>>());
    }

    #[test]
    fn payment_by_name_finds_the_customer_in_the_middle_or_one_who_is_not_there() {
        let by_name = "SELECT coalesce((SELECT c_id FROM customer WHERE c_w_id = 2 AND c_d_id = 4 AND c_last = 'BARBARBAR' ORDER BY c_first, c_id\n\
             LIMIT 1 OFFSET (SELECT (count(*) - 1) / 2 FROM customer WHERE c_w_id = 2 AND c_d_id = 4 AND c_last = 'BARBARBAR')), 0) AS c_id";
        let rest = paid_by(":c_id");
        let rest = rest.iter().map(String::as_str);
        let expected: Vec<&str> = PAID.into_iter().chain([by_name]).chain(rest).collect();
        expect(payment(Customer::LastName("BARBARBAR".to_owned())), &expected);
    }

    #[test]
    fn order_status_shows_the_last_order_of_either_way_to_name_a_customer() {
        let status = |customer| Parameters::OrderStatus(OrderStatus { w: 1, d: 2, customer });
        let rest = |c: &str| {
            let order = format!(
                "SELECT o_id, o_entry_d, o_carrier_id FROM orders\nWHERE o_w_id = 1 AND o_d_id = 2 AND o_c_id = {c} ORDER BY o_id DESC LIMIT 1"
            );
            let lines = "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line\n\
                 WHERE ol_w_id = 1 AND ol_d_id = 2 AND ol_o_id = :o_id";
            (order, lines)
        };
        let (order, lines) = rest("9");
        let by_number = "SELECT c_first, c_middle, c_last, c_balance FROM customer WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 9";
        expect(status(Customer::Number(9)), &[by_number, &order, lines]);
        let (order, lines) = rest(":c_id");
        let by_name = "SELECT c_id, c_first, c_middle, c_last, c_balance FROM customer\n\
             WHERE c_w_id = 1 AND c_d_id = 2 AND c_last = 'ABLE' ORDER BY c_first, c_id\n\
             LIMIT 1 OFFSET (SELECT (count(*) - 1) / 2 FROM customer WHERE c_w_id = 1 AND c_d_id = 2 AND c_last = 'ABLE')";
        expect(status(Customer::LastName("ABLE".to_owned())), &[by_name, &order, lines]);
    }

    #[test]
    fn delivery_does_nothing_more_for_a_district_where_it_has_taken_no_order() {
        let text = whole(&Parameters::Delivery(Delivery { w: 1, carrier: 6, now: NOW }), "BEGIN").text;
        let district = |district: i64| {
            format!(
                "SELECT min(no_o_id) AS oldest FROM new_order WHERE no_w_id = 1 AND no_d_id = {district};\n\
                 DELETE FROM new_order WHERE no_w_id = 1 AND no_d_id = {district} AND no_o_id = :oldest RETURNING no_o_id AS taken;\n\
                 SELECT o_c_id FROM orders WHERE o_w_id = 1 AND o_d_id = {district} AND o_id = :taken;\n\
                 UPDATE orders SET o_carrier_id = 6 WHERE o_w_id = 1 AND o_d_id = {district} AND o_id = :taken;\n\
                 UPDATE order_line SET ol_delivery_d = '1970-01-01 00:00:00.000000' WHERE ol_w_id = 1 AND ol_d_id = {district} AND ol_o_id = :taken;\n\
                 SELECT sum(ol_amount) AS total FROM order_line WHERE ol_w_id = 1 AND ol_d_id = {district} AND ol_o_id = :taken;\n\
                 UPDATE customer SET c_balance = c_balance + coalesce(:total, 0), c_delivery_cnt = c_delivery_cnt + 1\n\
                 WHERE c_w_id = 1 AND c_d_id = {district} AND c_id = :o_c_id;\n"
            )
        };
        assert_eq!(text, format!("BEGIN;\n{}COMMIT", (1..=10).map(district).collect::<String>()));
    }

    #[test]
    fn stock_level_looks_at_the_last_twenty_orders() {
        expect(
            Parameters::StockLevel(StockLevel { w: 3, d: 2, threshold: 15 }),
            &[
                "SELECT d_next_o_id FROM district WHERE d_w_id = 3 AND d_id = 2",
                "SELECT count(DISTINCT s.s_i_id) FROM order_line ol JOIN stock s ON s.s_w_id = ol.ol_w_id AND s.s_i_id = ol.ol_i_id\n\
                 WHERE ol.ol_w_id = 3 AND ol.ol_d_id = 2 AND ol.ol_o_id < :d_next_o_id AND ol.ol_o_id >= :d_next_o_id - 20 AND s.s_quantity < 15",
            ],
        );
    }

    #[test]
    fn each_computed_parameter_has_an_expression_and_no_name_is_left() {
        for statement in &catalogue().statements {
            let computed = statement.params.iter().filter(|name| *name == "?").count();
            assert_eq!(statement.computed.len(), computed, "{}", statement.id);
        }
        let population = Population::new(Scale::new(3, 100).unwrap(), 3, NOW);
        let mut generator = Generator::new(&population, HomeWarehouse::Uniform, 5, 0, 1, 0);
        for turn in 0..1_000 {
            let text =
                whole(&generator.draw(Kind::ALL[turn % 5], NOW), "BEGIN ISOLATION LEVEL SERIALIZABLE").text;
            // NULL stands only where an order has no carrier yet, and its lines no time of delivery.
            let known = text.replace("00:00:00.000000', NULL, ", "").replace(", NULL, ", "");
            assert!(!known.contains("NULL") && !text.contains(['{', '}', '$', '?']), "{text}");
            assert!(text.starts_with("BEGIN ISOLATION LEVEL SERIALIZABLE;\n"));
        }
    }
}
