//! The real driver: sockets, backend connections, timers. Decides nothing.
