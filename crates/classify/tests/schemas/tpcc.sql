-- The wholesale supplier of TPC-C, as the workload creates it.
CREATE TABLE warehouse (w_id integer NOT NULL, w_name varchar(10), w_street_1 varchar(20), w_street_2 varchar(20), w_city varchar(20), w_state char(2), w_zip char(9), w_tax numeric(4,4), w_ytd numeric(12,2), PRIMARY KEY (w_id));
CREATE TABLE district (d_id integer NOT NULL, d_w_id integer NOT NULL, d_name varchar(10), d_street_1 varchar(20), d_street_2 varchar(20), d_city varchar(20), d_state char(2), d_zip char(9), d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id integer, PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_id integer NOT NULL, c_d_id integer NOT NULL, c_w_id integer NOT NULL, c_first varchar(16), c_middle char(2), c_last varchar(16), c_street_1 varchar(20), c_street_2 varchar(20), c_city varchar(20), c_state char(2), c_zip char(9), c_phone char(16), c_since timestamp, c_credit char(2), c_credit_lim numeric(12,2), c_discount numeric(4,4), c_balance numeric(12,2), c_ytd_payment numeric(12,2), c_payment_cnt integer, c_delivery_cnt integer, c_data varchar(500), PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (h_id bigint NOT NULL, h_c_id integer, h_c_d_id integer, h_c_w_id integer, h_d_id integer, h_w_id integer, h_date timestamp, h_amount numeric(6,2), h_data varchar(24), PRIMARY KEY (h_id));
CREATE TABLE item (i_id integer NOT NULL, i_im_id integer, i_name varchar(24), i_price numeric(5,2), i_data varchar(50), PRIMARY KEY (i_id));
CREATE TABLE stock (s_i_id integer NOT NULL, s_w_id integer NOT NULL, s_quantity integer, s_dist_01 char(24), s_dist_02 char(24), s_dist_03 char(24), s_dist_04 char(24), s_dist_05 char(24), s_dist_06 char(24), s_dist_07 char(24), s_dist_08 char(24), s_dist_09 char(24), s_dist_10 char(24), s_ytd bigint, s_order_cnt integer, s_remote_cnt integer, s_data varchar(50), PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE orders (o_id integer NOT NULL, o_d_id integer NOT NULL, o_w_id integer NOT NULL, o_c_id integer, o_entry_d timestamp, o_carrier_id integer, o_ol_cnt integer, o_all_local integer, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE new_order (no_o_id integer NOT NULL, no_d_id integer NOT NULL, no_w_id integer NOT NULL, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_o_id integer NOT NULL, ol_d_id integer NOT NULL, ol_w_id integer NOT NULL, ol_number integer NOT NULL, ol_i_id integer, ol_supply_w_id integer, ol_delivery_d timestamp, ol_quantity integer, ol_amount numeric(6,2), ol_dist_info char(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE INDEX customer_c_w_id_c_d_id_c_last_c_first_idx ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_o_w_id_o_d_id_o_c_id_o_id_idx ON orders (o_w_id, o_d_id, o_c_id, o_id);
ALTER TABLE district ADD FOREIGN KEY (d_w_id) REFERENCES warehouse (w_id);
ALTER TABLE customer ADD FOREIGN KEY (c_w_id, c_d_id) REFERENCES district (d_w_id, d_id);
ALTER TABLE history ADD FOREIGN KEY (h_c_w_id, h_c_d_id, h_c_id) REFERENCES customer (c_w_id, c_d_id, c_id), ADD FOREIGN KEY (h_w_id, h_d_id) REFERENCES district (d_w_id, d_id);
ALTER TABLE stock ADD FOREIGN KEY (s_w_id) REFERENCES warehouse (w_id), ADD FOREIGN KEY (s_i_id) REFERENCES item (i_id);
ALTER TABLE orders ADD FOREIGN KEY (o_w_id, o_d_id, o_c_id) REFERENCES customer (c_w_id, c_d_id, c_id);
ALTER TABLE new_order ADD FOREIGN KEY (no_w_id, no_d_id, no_o_id) REFERENCES orders (o_w_id, o_d_id, o_id);
ALTER TABLE order_line ADD FOREIGN KEY (ol_w_id, ol_d_id, ol_o_id) REFERENCES orders (o_w_id, o_d_id, o_id), ADD FOREIGN KEY (ol_supply_w_id, ol_i_id) REFERENCES stock (s_w_id, s_i_id);
