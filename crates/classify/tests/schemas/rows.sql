-- Functions of rows, which may be written as columns are; keys and triggers of partitions and inheritors; keys that are computed.
CREATE SEQUENCE numbers;
CREATE TABLE b (id int PRIMARY KEY, q float8);
CREATE TABLE log (id int PRIMARY KEY, q float8);
CREATE FUNCTION vol(b) RETURNS float8 LANGUAGE sql AS 'SELECT random()';
CREATE FUNCTION fv(b) RETURNS float8 LANGUAGE sql STABLE AS 'SELECT q FROM log WHERE id = $1.id';
CREATE FUNCTION wr(b) RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES ($1.id, 1) RETURNING id';
CREATE FUNCTION doubled(b) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT $1.q * 2';
CREATE FUNCTION by_name(r b) RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT r.vol';
CREATE FUNCTION by_number(b) RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT $1.vol + $1.id';
CREATE TYPE pair AS (x int, y int);
CREATE FUNCTION vol(pair) RETURNS float8 LANGUAGE sql AS 'SELECT random()';
CREATE TABLE pairs (id int PRIMARY KEY, p pair, q float8);

CREATE TABLE m (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1);
CREATE TABLE m2 (v int, dropped int, k int NOT NULL, id int NOT NULL);
ALTER TABLE m2 DROP COLUMN dropped;
ALTER TABLE m ATTACH PARTITION m2 FOR VALUES IN (2);
CREATE UNIQUE INDEX ON m2 (v);
CREATE TABLE animal (id int PRIMARY KEY, tag int);
CREATE TABLE dog (tail int UNIQUE, UNIQUE (tag)) INHERITS (animal);

CREATE TABLE computed_key (a text, code text GENERATED ALWAYS AS (a || 'x') STORED PRIMARY KEY, v float8);
CREATE TABLE coded (id int PRIMARY KEY, a text, v float8, code text GENERATED ALWAYS AS (a || 'x') STORED UNIQUE);
CREATE TABLE of_coded (id int PRIMARY KEY, code text REFERENCES coded (code) ON UPDATE CASCADE);
CREATE TABLE deferred_key (id int PRIMARY KEY DEFERRABLE, a int UNIQUE, v float8);

CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (1, 1); RETURN NULL; END';
CREATE TABLE moved (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE moved_1 PARTITION OF moved FOR VALUES IN (1);
CREATE TRIGGER gone AFTER DELETE ON moved_1 FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TABLE keyless (id int, k int, v int) PARTITION BY LIST (k);
CREATE TABLE keyless_1 PARTITION OF keyless FOR VALUES IN (1);
CREATE TRIGGER come AFTER INSERT ON keyless_1 FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TRIGGER all_come AFTER INSERT ON keyless FOR EACH STATEMENT EXECUTE FUNCTION tell();
CREATE TABLE told (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE told_1 PARTITION OF told FOR VALUES IN (1);
CREATE TRIGGER all_come AFTER INSERT OR DELETE ON told FOR EACH STATEMENT EXECUTE FUNCTION tell();
CREATE TABLE pet (id int PRIMARY KEY, v int);
CREATE TABLE cat () INHERITS (pet);
CREATE TABLE kitten () INHERITS (cat);
CREATE TRIGGER changed AFTER UPDATE ON kitten FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TRIGGER emptied AFTER TRUNCATE ON kitten FOR EACH STATEMENT EXECUTE FUNCTION tell();
CREATE TABLE holder (id int PRIMARY KEY, v int);
CREATE TABLE held (id int, holder int REFERENCES holder ON DELETE SET NULL) PARTITION BY LIST (holder);
CREATE TABLE held_1 PARTITION OF held FOR VALUES IN (1);
CREATE TRIGGER gone AFTER DELETE ON held_1 FOR EACH ROW EXECUTE FUNCTION tell();

-- Foreign keys that a change may leave as they are.
CREATE TABLE firm (id int PRIMARY KEY);
CREATE TABLE site (id int PRIMARY KEY);
CREATE TABLE post (id int PRIMARY KEY, firm int REFERENCES firm ON DELETE SET NULL, site int REFERENCES site, title text);
CREATE INDEX ON post (site);
CREATE FUNCTION retitle(i int, t text) RETURNS void LANGUAGE sql AS 'UPDATE post SET title = t WHERE id = i';
