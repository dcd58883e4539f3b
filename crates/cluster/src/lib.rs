//! Local PostgreSQL servers in one folder, for up, demo, bench and tests.
