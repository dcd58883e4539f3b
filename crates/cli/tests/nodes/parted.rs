//! Particular faults, each aimed at one thing that must hold.
