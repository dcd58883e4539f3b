//! What must hold in the database after any run, however many customers there were.

use super::population::Population;
use super::rules::rules;
use crate::site::Check;

/// The rules of a bookstore with this population. Orders above the loaded ones are those that customers made.
pub fn checks(population: &Population) -> Vec<Check<Population>> {
    let loaded = population.scale().orders();
    let count = Check::count;
    vec![
        count(
            "an order's total is its sum, tax and shipping",
            format!(
                "orders o JOIN (SELECT ol_o_id, count(*) AS lines, sum(ol_qty) AS copies FROM order_line GROUP BY ol_o_id) l \
                 ON l.ol_o_id = o.o_id WHERE o_total <> o_sub_total + o_tax + 3 + CASE WHEN o_id <= {loaded} THEN lines ELSE copies END"
            ),
        ),
        count("an order's tax is 8.25 %", "orders WHERE o_tax <> round(o_sub_total * 0.0825, 2)".to_owned()),
        count(
            "an order has lines and one payment of its total",
            "orders o LEFT JOIN cc_xacts x ON x.cx_o_id = o.o_id WHERE x.cx_xact_amt IS DISTINCT FROM o.o_total \
             OR NOT EXISTS (SELECT 1 FROM order_line l WHERE l.ol_o_id = o.o_id)"
                .to_owned(),
        ),
        count(
            "lines and payments belong to an order",
            "(SELECT ol_o_id AS o_id FROM order_line UNION ALL SELECT cx_o_id FROM cc_xacts) part \
             LEFT JOIN orders USING (o_id) WHERE o_c_id IS NULL"
                .to_owned(),
        ),
        count(
            "an order's lines are numbered from 1 without a gap",
            "(SELECT 1 FROM order_line GROUP BY ol_o_id HAVING min(ol_id) <> 1 OR max(ol_id) <> count(*)) gap".to_owned(),
        ),
        count(
            "an order gives its customer's discount, on no more than the list price",
            format!(
                "(SELECT 1 FROM orders JOIN customer ON c_id = o_c_id JOIN order_line ON ol_o_id = o_id JOIN item ON i_id = ol_i_id \
                 WHERE o_id > {loaded} GROUP BY o_id, o_sub_total, c_discount \
                 HAVING min(ol_discount) <> c_discount OR max(ol_discount) <> c_discount \
                 OR o_sub_total > sum(ol_qty * i_srp) * (1 - c_discount) + 0.01) wrong"
            ),
        ),
        count(
            "an order's customer and addresses exist",
            "orders LEFT JOIN customer ON c_id = o_c_id LEFT JOIN address b ON b.addr_id = o_bill_addr_id \
             LEFT JOIN address s ON s.addr_id = o_ship_addr_id \
             WHERE c_id IS NULL OR b.addr_id IS NULL OR s.addr_id IS NULL"
                .to_owned(),
        ),
        count(
            "a line in a cart has a cart, an item and a quantity",
            "shopping_cart_line LEFT JOIN shopping_cart ON sc_id = scl_sc_id LEFT JOIN item ON i_id = scl_i_id \
             WHERE sc_id IS NULL OR i_id IS NULL OR scl_qty < 1"
                .to_owned(),
        ),
        count(
            "a customer's name is the customer's own, and the password follows from it",
            "(SELECT 1 FROM customer GROUP BY c_uname HAVING count(*) > 1 OR max(c_passwd) <> lower(c_uname)) wrong".to_owned(),
        ),
        count(
            "an item goes with five others",
            "item WHERE i_id IN (i_related1, i_related2, i_related3, i_related4, i_related5) OR \
             (SELECT count(DISTINCT r) FROM unnest(ARRAY[i_related1, i_related2, i_related3, i_related4, i_related5]) r) <> 5"
                .to_owned(),
        ),
        Check::judged(
            "an item's stock follows from what was sold: no sale was lost",
            format!(
                "SELECT i_id, i_stock, coalesce(sum(ol_qty), 0) FROM item LEFT JOIN order_line ON ol_i_id = i_id AND ol_o_id > {loaded} \
                 GROUP BY i_id, i_stock"
            ),
            stock_mismatches,
        ),
    ]
}

/// The items whose stock does not follow from what was sold: sales that overwrote each other (lost updates). A row is an item, the
/// copies on the shelf and those sold since the bookstore opened.
///
/// A sale takes its copies and sometimes adds a delivery of 21, so modulo 21 the stock tells what was sold. A lost sale of
/// exactly 21 copies escapes.
fn stock_mismatches(population: &Population, rows: &[Vec<i64>]) -> usize {
    let delivery = rules().client.stock_delivery;
    let differs = |row: &&Vec<i64>| match row[..] {
        [item, stock, sold] => (population.initial_stock(item) - sold - stock).rem_euclid(delivery) != 0,
        _ => true,
    };
    rows.iter().filter(differs).count()
}
