-- The auction site.
CREATE TABLE categories (
    id integer,
    name varchar(50),
    PRIMARY KEY (id)
);
CREATE TABLE regions (
    id integer,
    name varchar(25),
    PRIMARY KEY (id)
);
CREATE TABLE users (
    id integer,
    firstname varchar(20),
    lastname varchar(20),
    nickname varchar(20),
    password varchar(20),
    email varchar(50),
    rating integer,
    balance double precision,
    creation_date timestamp,
    region integer,
    PRIMARY KEY (id),
    FOREIGN KEY (region) REFERENCES regions (id)
);
CREATE INDEX ON users (nickname, password);
CREATE INDEX ON users (region);
CREATE TABLE items (
    id integer,
    name varchar(100),
    description text,
    initial_price double precision,
    quantity integer,
    reserve_price double precision,
    buy_now double precision,
    nb_of_bids integer,
    max_bid double precision,
    start_date timestamp,
    end_date timestamp,
    seller integer,
    category integer,
    PRIMARY KEY (id),
    FOREIGN KEY (seller) REFERENCES users (id),
    FOREIGN KEY (category) REFERENCES categories (id)
);
CREATE INDEX ON items (seller);
CREATE INDEX ON items (category);
CREATE TABLE old_items (
    id integer,
    name varchar(100),
    description text,
    initial_price double precision,
    quantity integer,
    reserve_price double precision,
    buy_now double precision,
    nb_of_bids integer,
    max_bid double precision,
    start_date timestamp,
    end_date timestamp,
    seller integer,
    category integer,
    PRIMARY KEY (id),
    FOREIGN KEY (seller) REFERENCES users (id),
    FOREIGN KEY (category) REFERENCES categories (id)
);
CREATE INDEX ON old_items (seller);
CREATE INDEX ON old_items (category);
CREATE TABLE bids (
    id integer,
    user_id integer,
    item_id integer,
    qty integer,
    bid double precision,
    max_bid double precision,
    date timestamp,
    PRIMARY KEY (id),
    FOREIGN KEY (user_id) REFERENCES users (id)
);
CREATE INDEX ON bids (item_id);
CREATE INDEX ON bids (user_id);
CREATE TABLE comments (
    id integer,
    from_user_id integer,
    to_user_id integer,
    item_id integer,
    rating integer,
    date timestamp,
    comment text,
    PRIMARY KEY (id),
    FOREIGN KEY (from_user_id) REFERENCES users (id),
    FOREIGN KEY (to_user_id) REFERENCES users (id)
);
CREATE INDEX ON comments (from_user_id);
CREATE INDEX ON comments (to_user_id);
CREATE INDEX ON comments (item_id);
CREATE TABLE buy_now (
    id integer,
    buyer_id integer,
    item_id integer,
    qty integer,
    date timestamp,
    PRIMARY KEY (id),
    FOREIGN KEY (buyer_id) REFERENCES users (id)
);
CREATE INDEX ON buy_now (buyer_id);
CREATE INDEX ON buy_now (item_id);
