-- Casts of users whose functions may yield another value each time, or on each server.
CREATE TYPE coin AS (side float8);
CREATE DOMAIN purse AS coin;
CREATE TYPE stamp AS (at timestamptz);
CREATE TYPE sealed AS (n int);
CREATE TYPE loose AS (n int);
CREATE TYPE safe AS (n int);
CREATE TABLE plain (id int PRIMARY KEY, n int, t text);
CREATE TABLE tossed (id int PRIMARY KEY, n int, c coin, p purse, list coin[]);
CREATE TABLE marked (id int PRIMARY KEY, s stamp);
CREATE TABLE closed (id int PRIMARY KEY, s sealed);
CREATE TABLE rests (id int PRIMARY KEY, l loose);
CREATE TABLE sure (id int PRIMARY KEY, f safe);

CREATE FUNCTION toss(int) RETURNS coin LANGUAGE sql VOLATILE AS 'SELECT row(random())::coin';
CREATE CAST (int AS coin) WITH FUNCTION toss(int) AS ASSIGNMENT;
CREATE TABLE by_default (id int PRIMARY KEY, c coin DEFAULT 7);

CREATE FUNCTION mark(text) RETURNS stamp LANGUAGE plpgsql STABLE AS 'BEGIN RETURN row(now())::stamp; END';
CREATE CAST (text AS stamp) WITH FUNCTION mark(text);

CREATE FUNCTION seal(int) RETURNS sealed LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN row(random() * 9)::sealed; END';
CREATE CAST (int AS sealed) WITH FUNCTION seal(int);

CREATE FUNCTION unpack(loose) RETURNS text LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN random()::text; END';
CREATE CAST (loose AS text) WITH FUNCTION unpack(loose) AS IMPLICIT;
CREATE FUNCTION takes_loose(loose) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';

CREATE FUNCTION saved(int) RETURNS safe LANGUAGE sql IMMUTABLE AS 'SELECT row($1)::safe';
CREATE CAST (int AS safe) WITH FUNCTION saved(int) AS ASSIGNMENT;

CREATE TABLE seen (n int);
CREATE FUNCTION note(int) RETURNS bool LANGUAGE sql VOLATILE AS 'INSERT INTO seen VALUES ($1) RETURNING true';
CREATE DOMAIN noted AS int CHECK (note(VALUE));
CREATE DOMAIN lucky AS float8 CHECK (VALUE < random());
CREATE TYPE holder AS (n noted);
CREATE TABLE held (id int PRIMARY KEY, h holder);
CREATE FUNCTION takes_noted(noted) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION added(int, int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN $1 + $2; END';
CREATE AGGREGATE summed (int) (sfunc = added, stype = int, initcond = '0');
CREATE FUNCTION guessed(a float8 DEFAULT random(), b int DEFAULT 3) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT a';

-- An extension's way: an operator that also types of the system have, and a cast with a forgotten IMMUTABLE.
CREATE TYPE shape AS (area float8);
CREATE TYPE topo AS (id int);
CREATE TABLE parcels (id int PRIMARY KEY, s shape, t text, day text, tags text[]);
CREATE FUNCTION same_shape(shape, shape) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT ($1).area = ($2).area';
CREATE OPERATOR = (LEFTARG = shape, RIGHTARG = shape, FUNCTION = same_shape);
CREATE FUNCTION shape_of(topo) RETURNS shape LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN row(random())::shape; END';
CREATE CAST (topo AS shape) WITH FUNCTION shape_of(topo) AS IMPLICIT;
CREATE FUNCTION made_shape(float8) RETURNS shape LANGUAGE sql IMMUTABLE AS 'SELECT row($1)::shape';
CREATE FUNCTION made_topo(int) RETURNS topo LANGUAGE sql IMMUTABLE AS 'SELECT row($1)::topo';
CREATE TYPE money_t AS (cents int8);
CREATE FUNCTION show_money(money_t) RETURNS text LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN ($1).cents::text; END';
CREATE CAST (money_t AS text) WITH FUNCTION show_money(money_t);
CREATE AGGREGATE joined (text) (sfunc = textcat, stype = text);
CREATE FUNCTION told(int, int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT $1 + $2';
CREATE AGGREGATE told_sum (int) (sfunc = told, stype = int, initcond = '0');
CREATE DOMAIN days AS date[];
CREATE DOMAIN span AS tstzrange;
CREATE DOMAIN opens AS timetz;
CREATE TABLE shifts (id int PRIMARY KEY, at timetz, every timetz[], o opens, day timestamptz, local time, t text);
CREATE TABLE shifts_by_default (id int PRIMARY KEY, at timetz DEFAULT LOCALTIME, fixed timetz DEFAULT '12:00+01');
CREATE DOMAIN years AS interval year;
CREATE TABLE terms (id int PRIMARY KEY, n int, span interval year, d years, plain interval);
