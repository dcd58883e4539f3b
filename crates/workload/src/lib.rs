//! TPC-W, bank and cycle workloads, used by sim and by bench.
