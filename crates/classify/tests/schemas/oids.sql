-- Values that hold OIDs, which differ between servers: names of objects, and labels of enumerations.
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN relation AS regclass;
CREATE TYPE labelled AS (id int, m mood);
CREATE TYPE named AS (id int, r regclass);
CREATE TYPE moods AS RANGE (subtype = mood);

CREATE TABLE plain (id int PRIMARY KEY, b bigint, o oid, t text, body text);
CREATE TABLE watched (id int PRIMARY KEY, r regclass, n int, t text);
CREATE TABLE watched_too (id int PRIMARY KEY, r regclass, d relation, list regclass[], c named);
CREATE TABLE watched_log (id int, r regclass, n int, t text);
CREATE TABLE by_name (r regclass PRIMARY KEY, n int);
CREATE TABLE held (id int PRIMARY KEY, m mood, ms mood[], l labelled, span moods);
CREATE TABLE numbered (id int PRIMARY KEY, r regclass, o oid GENERATED ALWAYS AS (r) STORED);
CREATE TABLE shown (id int PRIMARY KEY, r regclass, same regclass GENERATED ALWAYS AS (r) STORED);
CREATE TABLE found (id int PRIMARY KEY, body text,
    words tsvector GENERATED ALWAYS AS (to_tsvector('english'::regconfig, body)) STORED);
CREATE TABLE defaulted (id int PRIMARY KEY, r regclass DEFAULT 'plain', o oid DEFAULT 'plain'::regclass);

CREATE TABLE hashed (id int, m mood) PARTITION BY HASH (m);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE hashed_rows (id int, l labelled) PARTITION BY HASH (id, l);
CREATE TABLE hashed_parts (id int, l labelled) PARTITION BY HASH (((l).m));
CREATE TABLE listed (id int, m mood) PARTITION BY LIST (m);
CREATE TABLE listed_sad PARTITION OF listed FOR VALUES IN ('sad');
CREATE TABLE hashed_plainly (id int, m mood) PARTITION BY HASH (id);
CREATE TABLE hashed_plainly_0 PARTITION OF hashed_plainly FOR VALUES WITH (MODULUS 1, REMAINDER 0);

CREATE VIEW watched_names AS SELECT id, r FROM watched;
CREATE MATERIALIZED VIEW watched_rows AS SELECT id, r FROM watched;
CREATE FUNCTION same_text(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t';

CREATE TABLE searched (id int PRIMARY KEY, config regconfig, lang text, body text, b bigint, words tsvector,
    found tsvector GENERATED ALWAYS AS (to_tsvector(config, coalesce(body, ''))) STORED,
    chosen tsvector GENERATED ALWAYS AS (
        to_tsvector(CASE lang WHEN 'de' THEN 'german'::regconfig ELSE 'english'::regconfig END, body)) STORED);
CREATE TYPE region AS (name text, code int);
CREATE TABLE regions (id int PRIMARY KEY, r region);
CREATE SCHEMA elsewhere;
CREATE TABLE elsewhere.labelled (id int, r regclass);
CREATE FUNCTION numbered(r regclass) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT $1::oid::bigint';
CREATE FUNCTION hashed(m mood) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT hashenum($1)';
CREATE FUNCTION spoken(m mood) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN $1 > ''sad'' THEN $1::text END';
CREATE FUNCTION config_of(lang text) RETURNS regconfig LANGUAGE sql IMMUTABLE
    AS 'SELECT CASE lang WHEN ''de'' THEN ''german''::regconfig ELSE ''english''::regconfig END';
CREATE FUNCTION words_of(config regconfig, body text) RETURNS tsvector LANGUAGE sql IMMUTABLE
    AS 'SELECT to_tsvector(config, body)';
