-- The TPC-W bookstore.
CREATE TABLE country (
    co_id integer,
    co_name varchar(50),
    co_exchange numeric(12,6),
    co_currency varchar(18),
    PRIMARY KEY (co_id)
);
CREATE INDEX ON country (co_name);
CREATE TABLE author (
    a_id integer,
    a_fname varchar(20),
    a_lname varchar(20),
    a_mname varchar(20),
    a_dob date,
    a_bio varchar(500),
    PRIMARY KEY (a_id)
);
CREATE INDEX ON author (a_lname);
CREATE TABLE address (
    addr_id integer,
    addr_street1 varchar(40),
    addr_street2 varchar(40),
    addr_city varchar(30),
    addr_state varchar(20),
    addr_zip varchar(10),
    addr_co_id integer,
    PRIMARY KEY (addr_id),
    FOREIGN KEY (addr_co_id) REFERENCES country (co_id)
);
CREATE INDEX ON address (addr_zip);
CREATE INDEX ON address (addr_co_id);
CREATE TABLE customer (
    c_id integer,
    c_uname varchar(20),
    c_passwd varchar(20),
    c_fname varchar(17),
    c_lname varchar(17),
    c_addr_id integer,
    c_phone varchar(18),
    c_email varchar(50),
    c_since date,
    c_last_login date,
    c_login timestamp,
    c_expiration timestamp,
    c_discount numeric(5,2),
    c_balance numeric(17,2),
    c_ytd_pmt numeric(17,2),
    c_birthdate date,
    c_data varchar(500),
    PRIMARY KEY (c_id),
    FOREIGN KEY (c_addr_id) REFERENCES address (addr_id)
);
CREATE INDEX ON customer (c_uname);
CREATE INDEX ON customer (c_addr_id);
CREATE TABLE item (
    i_id integer,
    i_title varchar(60),
    i_a_id integer,
    i_pub_date date,
    i_publisher varchar(60),
    i_subject varchar(60),
    i_desc varchar(500),
    i_related1 integer,
    i_related2 integer,
    i_related3 integer,
    i_related4 integer,
    i_related5 integer,
    i_thumbnail varchar(40),
    i_image varchar(40),
    i_srp numeric(17,2),
    i_cost numeric(17,2),
    i_avail date,
    i_stock integer,
    i_isbn char(13),
    i_page integer,
    i_backing varchar(15),
    i_dimensions varchar(25),
    PRIMARY KEY (i_id),
    FOREIGN KEY (i_a_id) REFERENCES author (a_id)
);
CREATE INDEX ON item (i_title);
CREATE INDEX ON item (i_subject);
CREATE INDEX ON item (i_a_id);
CREATE TABLE orders (
    o_id integer,
    o_c_id integer,
    o_date timestamp,
    o_sub_total numeric(17,2),
    o_tax numeric(17,2),
    o_total numeric(17,2),
    o_ship_type varchar(10),
    o_ship_date timestamp,
    o_bill_addr_id integer,
    o_ship_addr_id integer,
    o_status varchar(15),
    PRIMARY KEY (o_id),
    FOREIGN KEY (o_c_id) REFERENCES customer (c_id),
    FOREIGN KEY (o_bill_addr_id) REFERENCES address (addr_id),
    FOREIGN KEY (o_ship_addr_id) REFERENCES address (addr_id)
);
CREATE INDEX ON orders (o_c_id);
CREATE TABLE order_line (
    ol_id integer,
    ol_o_id integer,
    ol_i_id integer,
    ol_qty integer,
    ol_discount numeric(5,2),
    ol_comments varchar(110),
    PRIMARY KEY (ol_o_id, ol_id),
    FOREIGN KEY (ol_o_id) REFERENCES orders (o_id),
    FOREIGN KEY (ol_i_id) REFERENCES item (i_id)
);
CREATE INDEX ON order_line (ol_i_id);
CREATE TABLE cc_xacts (
    cx_o_id integer,
    cx_type varchar(10),
    cx_num varchar(20),
    cx_name varchar(31),
    cx_expire date,
    cx_auth_id char(15),
    cx_xact_amt numeric(17,2),
    cx_xact_date timestamp,
    cx_co_id integer,
    PRIMARY KEY (cx_o_id),
    FOREIGN KEY (cx_o_id) REFERENCES orders (o_id),
    FOREIGN KEY (cx_co_id) REFERENCES country (co_id)
);
CREATE TABLE shopping_cart (
    sc_id integer,
    sc_time timestamp,
    PRIMARY KEY (sc_id)
);
CREATE TABLE shopping_cart_line (
    scl_sc_id integer,
    scl_qty integer,
    scl_i_id integer,
    PRIMARY KEY (scl_sc_id, scl_i_id),
    FOREIGN KEY (scl_sc_id) REFERENCES shopping_cart (sc_id),
    FOREIGN KEY (scl_i_id) REFERENCES item (i_id)
);
