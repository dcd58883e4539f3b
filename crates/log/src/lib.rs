//! The durable commit log: a pure engine plus a disk driver.
