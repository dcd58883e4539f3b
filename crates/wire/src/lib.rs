//! PostgreSQL protocol 3 messages, both ways: bytes in, types out, no sockets.
