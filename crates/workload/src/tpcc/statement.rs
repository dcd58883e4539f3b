//! The statements by name.

use crate::named::statements;

statements! {
    NewOrderWarehouse = "new_order.warehouse",
    NewOrderDistrict = "new_order.district",
    NewOrderCustomer = "new_order.customer",
    NewOrderOrder = "new_order.order",
    NewOrderMark = "new_order.mark",
    NewOrderItem = "new_order.item",
    NewOrderStock = "new_order.stock",
    NewOrderSetStock = "new_order.setstock",
    NewOrderLine = "new_order.line",
    PaymentWarehouse = "payment.warehouse",
    PaymentDistrict = "payment.district",
    PaymentByName = "payment.byname",
    PaymentCustomer = "payment.customer",
    PaymentPay = "payment.pay",
    PaymentData = "payment.data",
    PaymentHistory = "payment.history",
    OrderStatusByName = "order_status.byname",
    OrderStatusCustomer = "order_status.customer",
    OrderStatusOrder = "order_status.order",
    OrderStatusLines = "order_status.lines",
    DeliveryOldest = "delivery.oldest",
    DeliveryTake = "delivery.take",
    DeliveryCustomer = "delivery.customer",
    DeliveryCarrier = "delivery.carrier",
    DeliveryLines = "delivery.lines",
    DeliveryTotal = "delivery.total",
    DeliveryCredit = "delivery.credit",
    StockLevelDistrict = "stock_level.district",
    StockLevelCount = "stock_level.count",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Kind;
    use crate::tpcc::catalogue;

    #[test]
    fn statements_stand_in_the_order_of_the_catalogue() {
        let ours: Vec<&str> = Statement::ALL.iter().map(|each| each.id()).collect();
        let theirs: Vec<&str> = catalogue().statements.iter().map(|each| each.id.as_str()).collect();
        assert_eq!(ours, theirs);
        assert_eq!((ours.len(), catalogue().tables.len()), (29, 9));
    }

    #[test]
    fn transactions_are_of_the_kinds_that_the_statements_make() {
        let kinds: Vec<Kind> = catalogue().transactions.iter().map(|transaction| transaction.kind).collect();
        let (read, update) = (Kind::MultiRead, Kind::MultiUpdate);
        assert_eq!(kinds, [update, update, read, update, read]);
    }

    #[test]
    fn tables_of_a_loop_are_used_until_it_ends() {
        let last_uses = |statement: Statement| -> Vec<&str> {
            let tables = &catalogue().statement(statement.into()).last_use;
            tables.iter().map(|table| catalogue().table(*table).name.as_str()).collect()
        };
        assert_eq!(last_uses(Statement::NewOrderMark), ["new_order"]);
        assert_eq!(last_uses(Statement::NewOrderSetStock), [""; 0]);
        assert_eq!(last_uses(Statement::NewOrderLine), ["item", "stock", "order_line"]);
        assert_eq!(last_uses(Statement::DeliveryCredit), ["customer", "orders", "new_order", "order_line"]);
    }
}
