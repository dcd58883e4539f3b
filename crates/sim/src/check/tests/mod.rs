//! A checker is trusted for what it finds and for what it does not: planted anomalies, an oracle that tries all
//! orders of small histories, and random histories that are valid by construction, then corrupted.

mod anomalies;
mod corruption;
mod generate;
mod oracle;
mod replay;
mod text;
