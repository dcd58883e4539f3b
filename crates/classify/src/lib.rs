//! SQL text to access set, determinism, class and rewrite. The only crate that parses SQL.
