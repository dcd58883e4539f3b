-- Conditions that a server evaluates by itself: CHECKs, and WHEN of triggers.
CREATE FUNCTION looks() RETURNS trigger LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN NEW; END';
CREATE TABLE by_row (id int PRIMARY KEY, price int, at timestamptz, kind regclass);
CREATE TRIGGER changed BEFORE UPDATE ON by_row FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION looks();
CREATE TRIGGER priced BEFORE INSERT OR UPDATE ON by_row FOR EACH ROW WHEN (NEW.price > 0) EXECUTE FUNCTION looks();
CREATE TRIGGER outermost BEFORE INSERT ON by_row FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION looks();
CREATE TRIGGER by_role BEFORE DELETE ON by_row FOR EACH ROW WHEN (CURRENT_USER <> 'auditor') EXECUTE FUNCTION looks();
CREATE TABLE by_user (id int PRIMARY KEY, v int);
CREATE TRIGGER by_user BEFORE INSERT ON by_user FOR EACH ROW WHEN (SESSION_USER = 'bob') EXECUTE FUNCTION looks();
CREATE TABLE by_clock (id int PRIMARY KEY, at timestamptz);
CREATE TRIGGER by_clock BEFORE INSERT ON by_clock FOR EACH ROW WHEN (NEW.at > now()) EXECUTE FUNCTION looks();
CREATE TABLE by_setting (id int PRIMARY KEY, v int);
CREATE TRIGGER by_setting AFTER TRUNCATE ON by_setting WHEN (current_setting('app.x', true) = 'on') EXECUTE FUNCTION looks();
CREATE TABLE of_replicas (id int PRIMARY KEY, v float8);
CREATE TRIGGER of_replicas BEFORE INSERT ON of_replicas FOR EACH ROW EXECUTE FUNCTION looks();
ALTER TABLE of_replicas ENABLE REPLICA TRIGGER of_replicas;

CREATE TABLE lasting (
    id int PRIMARY KEY, a timestamptz DEFAULT now() CHECK (a <= now()), b date CHECK (b IS NULL OR b < CURRENT_DATE + 1),
    c timestamp CHECK ((now() AT TIME ZONE 'utc') >= c), d int CHECK (d <= extract(year FROM now())),
    e date CHECK (e <= (CURRENT_DATE - interval '18 years')::date), f int CHECK (f > 0), g regclass CHECK (g <> 'by_row'::regclass)
);
CREATE TABLE expiring (id int PRIMARY KEY, expires timestamptz CHECK (expires > now()));
CREATE TABLE local_time (id int PRIMARY KEY, at timestamp CHECK (at <= LOCALTIMESTAMP));
CREATE TABLE owned (id int PRIMARY KEY, owner text CHECK (owner = CURRENT_USER));
CREATE TABLE entered (id int PRIMARY KEY, by text CHECK (by = SESSION_USER));
CREATE DOMAIN me AS text CHECK (VALUE = SESSION_USER);
CREATE TABLE of_domain (id int PRIMARY KEY, by me);
CREATE TABLE of_domains (id int PRIMARY KEY, who me[], v float8);
CREATE TABLE plain (id int PRIMARY KEY, t text, v float8);
CREATE FUNCTION known(i int) RETURNS bool LANGUAGE plpgsql STABLE AS 'BEGIN RETURN EXISTS (SELECT FROM plain WHERE id = i); END';
CREATE TABLE looked_up (id int PRIMARY KEY, plain int CHECK (known(plain)));
CREATE FUNCTION is_known(i int) RETURNS bool LANGUAGE sql STABLE AS 'SELECT EXISTS (SELECT FROM plain WHERE id = i)';
CREATE TABLE looked_at (id int PRIMARY KEY, plain int CHECK (is_known(plain)), v float8);
CREATE TABLE referring (id int PRIMARY KEY, plain int REFERENCES plain ON DELETE SET NULL, until date CHECK (until > CURRENT_DATE));
CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY LIST (id);
CREATE TABLE part_with_rule PARTITION OF parted FOR VALUES IN (1);
CREATE RULE of_part AS ON INSERT TO part_with_rule DO ALSO SELECT random();
