-- Partitions that differ from their root in the order of columns, in defaults and in checks.
CREATE SEQUENCE numbers;
CREATE TABLE root (id int, k int, n int DEFAULT 1, at timestamptz, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE constant PARTITION OF root (n DEFAULT 7) FOR VALUES FROM (0) TO (10);
CREATE TABLE drawn PARTITION OF root (n DEFAULT nextval('numbers')) FOR VALUES FROM (10) TO (20);
CREATE TABLE random PARTITION OF root (n DEFAULT random() * 9) FOR VALUES FROM (20) TO (30);
CREATE TABLE turned (at timestamptz DEFAULT now(), n int, k int NOT NULL, id int NOT NULL);
ALTER TABLE root ATTACH PARTITION turned FOR VALUES FROM (30) TO (40);
CREATE TABLE copied (id int PRIMARY KEY, n int, at timestamptz);

CREATE TABLE counted (id bigint GENERATED ALWAYS AS IDENTITY, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE counted_1 PARTITION OF counted FOR VALUES IN (1);

CREATE FUNCTION guess(int) RETURNS bool LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN true; END';
CREATE TABLE checked (id int PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE checked_1 PARTITION OF checked FOR VALUES IN (1);
ALTER TABLE checked_1 ADD CHECK (guess(id));

CREATE TABLE shop (id int PRIMARY KEY);
CREATE TABLE sold (id int, region int, shop int REFERENCES shop, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE sold_1 PARTITION OF sold FOR VALUES IN (1);
