-- What people do with psql: the backslash commands that answer from the catalogue, COPY by the client, variables.
-- Nothing here may print an OID, a time or a process id: the transcript is compared with one server's.
\set VERBOSITY verbose
\set SHOW_CONTEXT never
CREATE SCHEMA psql;
SET search_path = psql;
CREATE TABLE accounts (
    id int PRIMARY KEY,
    owner text NOT NULL DEFAULT 'nobody',
    balance numeric(12,2) CHECK (balance >= 0),
    opened date
);
CREATE TABLE payments (
    id bigserial PRIMARY KEY,
    account int REFERENCES accounts ON DELETE CASCADE,
    amount numeric(12,2) NOT NULL
);
CREATE UNIQUE INDEX accounts_owner ON accounts (owner, opened DESC);
CREATE INDEX accounts_poor ON accounts (balance) WHERE balance < 10;
CREATE VIEW rich AS SELECT owner, balance FROM accounts WHERE balance > 1000;
CREATE SEQUENCE tickets START 100 INCREMENT 5;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN percent AS int CHECK (VALUE BETWEEN 0 AND 100);
CREATE FUNCTION double(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';
CREATE ROLE teller;
GRANT SELECT ON accounts TO teller;
COMMENT ON TABLE accounts IS 'who has how much';

\d
\d accounts
\d payments
\d+ accounts
\d+ rich
\d accounts_owner
\d tickets
\d nothing
\dt
\dt+ psql.*
\dt acc*
\di
\dv
\ds
\dm
\df
\df+ double
\sf double
\sv rich
\dT
\dD
\du
\dn psql
\dn+ public
\dp accounts
\dd
\l
\dx
\db
\dF
\dconfig search_path
\dt pg_catalog.pg_cl*

INSERT INTO accounts VALUES (1, 'Ada', 10, '2001-02-03'), (2, 'Bo', 2000.5, NULL);
\x on
SELECT * FROM accounts ORDER BY id;
\x off
\pset null '(null)'
SELECT * FROM accounts ORDER BY id;
SELECT count(*) AS many FROM accounts \gset
\echo :many
SELECT id, owner FROM accounts WHERE id = :many \gx
SELECT format('INSERT INTO payments (account, amount) VALUES (%s, %s)', id, id * 1.5) FROM accounts ORDER BY id \gexec
SELECT account, amount FROM payments ORDER BY id;
SELECT id, owner, balance FROM accounts ORDER BY id \gdesc
SELECT owner, id % 2 AS odd, balance FROM accounts ORDER BY id \crosstabview

\copy accounts (id, owner, balance) from stdin
3	Cy	30
4	Di	\N
\.
\copy accounts to stdout
\copy (SELECT id, owner FROM accounts WHERE id > 2 ORDER BY id) to stdout with (format csv, header)
\copy accounts to 'accounts.bin' with (format binary)
BEGIN;
DELETE FROM accounts;
\copy accounts from 'accounts.bin' with (format binary)
SELECT id, owner, balance, opened FROM accounts ORDER BY id;
COMMIT;
COPY accounts (id) FROM stdin;
not a number
\.
COPY (SELECT 'a' UNION ALL SELECT 'b') TO stdout;

\set FETCH_COUNT 2
SELECT id FROM accounts ORDER BY id;
SELECT g FROM generate_series(1, 5) g;
\unset FETCH_COUNT

\set ON_ERROR_ROLLBACK on
BEGIN;
INSERT INTO accounts VALUES (10, 'Eve', 1, NULL);
INSERT INTO accounts VALUES (10, 'Eve', 1, NULL);
INSERT INTO accounts VALUES (11, 'Flo', 1, NULL);
COMMIT;
\unset ON_ERROR_ROLLBACK
SELECT count(*) FROM accounts;
\set AUTOCOMMIT off
UPDATE accounts SET balance = 0 WHERE id = 11;
\echo :ERROR :ROW_COUNT
ROLLBACK;
\set AUTOCOMMIT on
SELECT balance FROM accounts WHERE id = 11;

SELECT 1 / 0;
SELECT nothing FROM accounts;
SELEC 1;
INSERT INTO accounts (id) VALUES (1);
INSERT INTO payments (account, amount) VALUES (999, 1);
UPDATE accounts SET balance = -1 WHERE id = 1;
SELECT 1 AS one \; SELECT 2 AS two;
SELECT * FROM rich;
SHOW search_path;
EXPLAIN (COSTS off) SELECT * FROM accounts WHERE id = 1;
DROP OWNED BY teller;
DROP ROLE teller;
\du
DROP SCHEMA psql CASCADE;
\dt
