-- The schema that random statements run against: small domains, many ties between tables.
CREATE TYPE mood AS ENUM ('a', 'b', 'c');
CREATE TABLE p (id int PRIMARY KEY, r int UNIQUE, n text);
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, n text);
CREATE INDEX ON c (p);
CREATE TABLE k (id int PRIMARY KEY, p int NOT NULL REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE, n text UNIQUE);
CREATE TABLE s (id int PRIMARY KEY, k int REFERENCES k ON DELETE SET NULL ON UPDATE CASCADE, r int REFERENCES p (r));
CREATE TABLE w (a int, b int, c int UNIQUE, d int, PRIMARY KEY (a, b));
CREATE TABLE t (
    id int PRIMARY KEY, i8 bigint UNIQUE, x text UNIQUE, v varchar(2) UNIQUE, h char(2) UNIQUE, m mood UNIQUE,
    q numeric UNIQUE, e numeric(5, 1) UNIQUE
);
CREATE TABLE f (id int PRIMARY KEY, x text, dead bool NOT NULL DEFAULT false);
CREATE UNIQUE INDEX ON f (x) WHERE NOT dead;
CREATE TABLE l (id int PRIMARY KEY, x text);
CREATE UNIQUE INDEX ON l (lower(x));
CREATE TABLE g (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a % 3) STORED UNIQUE);
CREATE TABLE o (a int, n int);
CREATE INDEX ON o (a);
CREATE TABLE z (r int, id int, v int, PRIMARY KEY (r, id)) PARTITION BY LIST (r);
CREATE TABLE z1 PARTITION OF z FOR VALUES IN (0, 1);
CREATE TABLE z2 (v int, id int NOT NULL, r int NOT NULL, PRIMARY KEY (r, id));
ALTER TABLE z ATTACH PARTITION z2 FOR VALUES IN (2, 3);
CREATE TABLE u (id int PRIMARY KEY, n int);
CREATE TABLE ui (extra int, PRIMARY KEY (id)) INHERITS (u);
CREATE VIEW cp AS SELECT c.id, c.p, p.n, p.r FROM c JOIN p ON p.id = c.p;
CREATE VIEW cl AS SELECT c.id, c.p, p.n AS pn FROM c LEFT JOIN p ON p.id = c.p AND p.r = 1;
CREATE VIEW cc AS SELECT p, count(*) AS n FROM c GROUP BY p;
CREATE FUNCTION named(i int) RETURNS text LANGUAGE sql STABLE AS 'SELECT n FROM p WHERE id = i';
CREATE FUNCTION bump(i int) RETURNS void LANGUAGE sql AS 'UPDATE o SET n = coalesce(n, 0) + 1 WHERE a = i';
