//! The statements by name, so that code and data cannot part unnoticed.

use crate::named::statements;

statements! {
    HomeGreetName = "home.greet.name",
    HomePromo = "home.promo.related",
    NewpPromo = "newp.promo.related",
    NewpList = "newp.list.items",
    BessPromo = "bess.promo.related",
    BessList = "bess.list.items",
    ProdDetail = "prod.detail.item",
    SreqPromo = "sreq.promo.related",
    SresPromo = "sres.promo.related",
    SresAuthor = "sres.author.items",
    SresTitle = "sres.title.items",
    SresSubject = "sres.subject.items",
    ShopCreate = "shop.create.insert",
    ShopFind = "shop.update.find",
    ShopBump = "shop.update.bump",
    ShopAdd = "shop.update.add",
    ShopSetQuantity = "shop.update.setqty",
    ShopRemove = "shop.update.remove",
    ShopCount = "shop.update.count",
    ShopSuggest = "shop.update.suggest",
    ShopAddSuggested = "shop.update.addsuggest",
    ShopTouch = "shop.update.touch",
    ShopShow = "shop.update.show",
    ShopPromo = "shop.promo.related",
    CregUserName = "creg.uname.get",
    BuyrLookup = "buyr.lookup.customer",
    BuyrRefresh = "buyr.session.refresh",
    BuyrCountry = "buyr.newcustomer.country",
    BuyrFindAddress = "buyr.newcustomer.findaddr",
    BuyrAddress = "buyr.newcustomer.addr",
    BuyrCustomer = "buyr.newcustomer.insert",
    BuyrCart = "buyr.cart.lines",
    BuycCustomer = "buyc.order.customer",
    BuycCart = "buyc.order.cart",
    BuycCountry = "buyc.order.country",
    BuycFindAddress = "buyc.order.findaddr",
    BuycAddress = "buyc.order.addr",
    BuycOrder = "buyc.order.insert",
    BuycLine = "buyc.order.line",
    BuycStock = "buyc.order.stock",
    BuycSetStock = "buyc.order.setstock",
    BuycShipCountry = "buyc.order.shipco",
    BuycCard = "buyc.order.card",
    BuycClear = "buyc.order.clear",
    OrddPassword = "ordd.auth.passwd",
    OrddLast = "ordd.show.last",
    OrddOrder = "ordd.show.order",
    OrddLines = "ordd.show.lines",
    AdmrItem = "admr.item.get",
    AdmcItem = "admc.item.get",
    AdmcUpdate = "admc.update.item",
    AdmcRelated = "admc.update.related",
    AdmcSetRelated = "admc.update.setrelated",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Kind;
    use crate::tpcw::catalogue;

    #[test]
    fn statements_stand_in_the_order_of_the_catalogue() {
        let ours: Vec<&str> = Statement::ALL.iter().map(|each| each.id()).collect();
        let theirs: Vec<&str> = catalogue().statements.iter().map(|each| each.id.as_str()).collect();
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 53);
    }

    #[test]
    fn last_uses_of_a_purchase_are_where_the_loop_ends() {
        let last_uses = |statement: Statement| -> Vec<&str> {
            let tables = &catalogue().statement(statement.into()).last_use;
            tables.iter().map(|table| catalogue().table(*table).name.as_str()).collect()
        };
        assert_eq!(last_uses(Statement::BuycCustomer), ["customer"]);
        assert_eq!(last_uses(Statement::BuycCart), [""; 0]);
        assert_eq!(last_uses(Statement::BuycCountry), ["country"]);
        assert_eq!(last_uses(Statement::BuycOrder), ["orders"]);
        assert_eq!(last_uses(Statement::BuycLine), [""; 0]);
        assert_eq!(last_uses(Statement::BuycSetStock), ["item", "order_line"]);
        assert_eq!(last_uses(Statement::BuycShipCountry), ["address"]);
        assert_eq!(last_uses(Statement::BuycClear), ["shopping_cart_line"]);
        assert_eq!(last_uses(Statement::ShopShow), ["item", "shopping_cart_line"]);
    }

    #[test]
    fn transactions_are_of_the_kinds_that_the_statements_make() {
        let of = |name: &str| catalogue().transaction(catalogue().transaction_id(name).unwrap());
        assert_eq!(of("home.greet").kind, Kind::SingleRead);
        assert_eq!(of("shop.create").kind, Kind::SingleUpdate);
        assert_eq!(of("ordd.show").kind, Kind::MultiRead);
        let order = of("buyc.order");
        assert_eq!(order.kind, Kind::MultiUpdate);
        assert_eq!((order.reads.len(), order.writes.len(), order.writes_usual.len()), (2, 6, 5));
        let updates = catalogue().transactions.iter().filter(|transaction| transaction.kind.is_update());
        assert_eq!(updates.count(), 6);
    }
}
