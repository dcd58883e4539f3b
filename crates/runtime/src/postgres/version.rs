//! Of which version a server is, in so far as the same statement may have other results there.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lane::{Lane, LaneError};

/// What must be equal on two servers for a change of rows to be executed on both (design 3.7). Older ones come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerVersion {
    /// The major version, as in 15. Minor ones bring no other results but by mistake.
    pub major: u32,
    /// The version of the library that orders text, where the server knows it (from 16 on; 15 knows that of when the database was
    /// made): it decides what is less or greater, in conditions, too.
    #[serde(default)]
    pub collations: String,
}

/// The version of what orders text, of the row `d` of `pg_database`, as SQL; empty where it is not known. 100 is the default collation.
pub const COLLATIONS_SQL: &str =
    "coalesce(pg_catalog.pg_collation_actual_version(100), pg_catalog.to_jsonb(d)->>'datcollversion', '')";

impl ServerVersion {
    /// From `server_version_num` and what [`COLLATIONS_SQL`] gives.
    pub fn new(number: &str, collations: &str) -> ServerVersion {
        ServerVersion {
            major: number.parse::<u32>().unwrap_or(0) / 10_000,
            collations: collations.to_owned(),
        }
    }

    /// That of the server of a lane, for the lane's database.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn read(lane: &mut Lane) -> Result<ServerVersion, LaneError> {
        let sql = format!(
            "SELECT pg_catalog.current_setting('server_version_num'), {COLLATIONS_SQL} FROM pg_catalog.pg_database d \
             WHERE d.datname = pg_catalog.current_database()"
        );
        let rows = lane.query(&sql).await?;
        let mut values = rows.into_iter().flatten().map(Option::unwrap_or_default);
        let (number, collations) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        Ok(ServerVersion::new(&number, &collations))
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.collations.as_str() {
            "" => write!(f, "{}", self.major),
            collations => write!(f, "{} (collations {collations})", self.major),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions_are_one_and_older_major_ones_come_first() {
        let of = |number| ServerVersion::new(number, "");
        assert_eq!(of("150004"), of("150018"));
        assert!(of("150018") < of("160000") && of("90624") < of("150000"));
        let by_collations = ServerVersion::new("150018", "2.36");
        assert!(by_collations != of("150018") && by_collations < of("160000"));
        assert_eq!(
            [of("150018"), by_collations].map(|version| version.to_string()),
            ["15", "15 (collations 2.36)"]
        );
    }
}
