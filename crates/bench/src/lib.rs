//! Drives a workload against any DSN; writes results, plots and reports.
