//! What must hold in the database after any run: the benchmark's consistency conditions (its clause 3.3.2), and that no sale was lost.

use super::population::Population;
use super::rules::rules;
use crate::site::Check;

/// The conditions for a supplier with this population. Orders above the loaded ones are those that terminals entered.
///
/// The benchmark asks for the last eight of its twelve only of a fresh database. They hold after any run as well, but for the
/// eleventh, which counts deliveries here: without them the difference would be as loaded.
pub fn checks(population: &Population) -> Vec<Check<Population>> {
    let scale = population.scale();
    let (loaded, delivered) = (scale.customers(), scale.customers() - scale.undelivered());
    let count = |rule: &'static str, violations: &str| Check::count(rule, violations.to_owned());
    // What a customer's delivered orders cost, and what the customer has paid.
    let delivered_to = "LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS owed FROM orders \
         JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id \
         WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) delivered \
         ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id";
    let paid_by = "LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history \
         GROUP BY h_c_w_id, h_c_d_id, h_c_id) payment ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id";
    vec![
        count(
            "1: a warehouse was paid what its districts were paid",
            "warehouse LEFT JOIN (SELECT d_w_id, sum(d_ytd) AS paid FROM district GROUP BY d_w_id) d ON d_w_id = w_id \
             WHERE w_ytd IS DISTINCT FROM paid",
        ),
        count(
            "2: a district's next order follows its last one, which is the last one that waits if any does",
            "district LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last FROM orders GROUP BY o_w_id, o_d_id) o \
             ON o_w_id = d_w_id AND o_d_id = d_id \
             LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS waiting FROM new_order GROUP BY no_w_id, no_d_id) n \
             ON no_w_id = d_w_id AND no_d_id = d_id WHERE d_next_o_id - 1 IS DISTINCT FROM last OR waiting <> last",
        ),
        count(
            "3: a district's orders that wait follow each other without a gap",
            "(SELECT 1 FROM new_order GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)) gap",
        ),
        count(
            "4: a district has as many lines as its orders say",
            "(SELECT o_w_id AS w, o_d_id AS d, sum(o_ol_cnt) AS said FROM orders GROUP BY o_w_id, o_d_id) o \
             FULL JOIN (SELECT ol_w_id AS w, ol_d_id AS d, count(*) AS there FROM order_line GROUP BY ol_w_id, ol_d_id) l \
             USING (w, d) WHERE said IS DISTINCT FROM there",
        ),
        count(
            "5: an order without a carrier waits, and one with a carrier does not",
            "orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id \
             WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
        ),
        count(
            "6: an order has as many lines as it says",
            "orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS lines FROM order_line \
             GROUP BY ol_w_id, ol_d_id, ol_o_id) l ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id \
             WHERE o_ol_cnt IS DISTINCT FROM lines",
        ),
        count(
            "7: a line is delivered if its order has a carrier, and only then",
            "order_line LEFT JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id \
             WHERE o_id IS NULL OR (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
        ),
        count(
            "8: a warehouse was paid what the history says",
            "warehouse LEFT JOIN (SELECT h_w_id, sum(h_amount) AS paid FROM history GROUP BY h_w_id) h ON h_w_id = w_id \
             WHERE w_ytd IS DISTINCT FROM paid",
        ),
        count(
            "9: a district was paid what the history says",
            "district LEFT JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS paid FROM history GROUP BY h_w_id, h_d_id) h \
             ON h_w_id = d_w_id AND h_d_id = d_id WHERE d_ytd IS DISTINCT FROM paid",
        ),
        Check::count(
            "10: a customer owes what was delivered and not paid",
            format!(
                "customer {delivered_to} {paid_by} WHERE c_balance <> coalesce(owed, 0) - coalesce(paid, 0)"
            ),
        ),
        Check::count(
            "11: a district has as many orders that do not wait as were delivered",
            format!(
                "(SELECT o_w_id AS w, o_d_id AS d, count(*) AS entered FROM orders GROUP BY o_w_id, o_d_id) o \
                 LEFT JOIN (SELECT no_w_id AS w, no_d_id AS d, count(*) AS waiting FROM new_order GROUP BY no_w_id, no_d_id) n \
                 USING (w, d) \
                 LEFT JOIN (SELECT c_w_id AS w, c_d_id AS d, sum(c_delivery_cnt) AS gone FROM customer GROUP BY c_w_id, c_d_id) c \
                 USING (w, d) WHERE entered - coalesce(waiting, 0) <> {delivered} + coalesce(gone, 0)"
            ),
        ),
        Check::count(
            "12: a customer's balance and payments are what was delivered",
            format!("customer {delivered_to} WHERE c_balance + c_ytd_payment <> coalesce(owed, 0)"),
        ),
        Check::count(
            "a stock counts what was ordered from it",
            format!(
                "stock LEFT JOIN (SELECT ol_supply_w_id, ol_i_id, sum(ol_quantity) AS pieces, count(*) AS lines, \
                 sum(CASE WHEN ol_supply_w_id <> ol_w_id THEN 1 ELSE 0 END) AS remote FROM order_line WHERE ol_o_id > {loaded} \
                 GROUP BY ol_supply_w_id, ol_i_id) l ON ol_supply_w_id = s_w_id AND ol_i_id = s_i_id \
                 WHERE s_ytd <> coalesce(pieces, 0) OR s_order_cnt <> coalesce(lines, 0) OR s_remote_cnt <> coalesce(remote, 0)"
            ),
        ),
        Check::judged(
            "a stock's quantity follows from what was ordered from it: no sale was lost",
            "SELECT s_w_id, s_i_id, s_quantity, s_ytd FROM stock WHERE s_order_cnt > 0".to_owned(),
            lost_sales,
        ),
    ]
}

/// The stocks whose quantity does not follow from what was ordered: sales that overwrote each other (lost updates). A row is a warehouse,
/// an item, its pieces and those ordered.
///
/// A sale takes its pieces and sometimes adds a delivery of 91, so modulo 91 the quantity tells what was ordered.
fn lost_sales(population: &Population, rows: &[Vec<i64>]) -> usize {
    let delivery = rules().client.stock_delivery;
    let differs = |row: &&Vec<i64>| match row[..] {
        [warehouse, item, quantity, ordered] => {
            let initial = population.initial_stock(warehouse, item);
            (initial - ordered - quantity).rem_euclid(delivery) != 0
        }
        _ => true,
    };
    rows.iter().filter(differs).count()
}
