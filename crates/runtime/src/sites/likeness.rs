//! What has to be the same at all sites or peers, each of which executes what the others do, by digests that they tell each other.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onecopy_classify::Catalogue;
use onecopy_classify::catalogue::Table;
use sha2::{Digest, Sha256};

use super::database::Database;
use crate::lane::LaneError;
use crate::postgres::checks::Facts;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Likeness {
    /// A digest of how it was started, and of its server.
    pub settings: u64,
    /// A digest of what its database defines.
    pub definitions: u64,
}

impl Likeness {
    /// Of this one, which was started in some way; with what else of its definitions has to be the same.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn read(
        started: String,
        facts: &Facts,
        database: &Database,
        more: Vec<String>,
    ) -> Result<Likeness, LaneError> {
        let found = database.fingerprints().await?.into_iter().map(|of| [of.object, of.value]);
        let definitions: BTreeSet<[String; 2]> =
            found.chain(more.into_iter().map(|more| [String::new(), more])).collect();
        let of_server = facts.by_major_version().map(|(name, value)| format!("{name} {value}"));
        Ok(Likeness {
            settings: digest([started].into_iter().chain(of_server)),
            definitions: digest(definitions.into_iter().flatten()),
        })
    }

    pub fn put(self, out: &mut BytesMut) {
        out.put_u64(self.settings);
        out.put_u64(self.definitions);
    }

    pub fn take(input: &mut Bytes) -> Option<Likeness> {
        Some(Likeness { settings: input.try_get_u64().ok()?, definitions: input.try_get_u64().ok()? })
    }

    /// What this one has that another one has not, and what to do about it.
    pub fn differs_from(self, other: Likeness) -> Option<&'static str> {
        const SETTINGS: &str = "it was started with another protocol, other choices or other nodes, or holds other rows of tables that are to be dealt, or is another version of onecopy, or its server is of another major version, orders text otherwise or has other settings or extensions; make these the same at all";
        const DEFINITIONS: &str = "its database has other definitions, or other roles; compare what pg_dump --create --schema-only and pg_dumpall --globals-only say of both servers, make them the same (with protocol = \"certified\", peers.parts, peers.coalesces or peers.granules columns must have the same numbers, too, so dropped ones count: copy one of the databases)";
        match other {
            _ if self.settings != other.settings => Some(SETTINGS),
            _ if self.definitions != other.definitions => Some(DEFINITIONS),
            _ => None,
        }
    }
}

/// Which numbers columns and unique keys have, as far as items name them by these.
pub fn numbers(catalogue: &Catalogue) -> Vec<String> {
    let of_table = |table: &Table| {
        let columns: Vec<(u16, &str)> =
            table.columns.iter().map(|column| (column.number, &*column.name)).collect();
        format!("{}.{} {columns:?} {:?}", table.schema, table.name, table.unique)
    };
    catalogue.tables.iter().map(of_table).collect()
}

/// The same on every machine, by every version.
fn digest(texts: impl IntoIterator<Item = String>) -> u64 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().into_iter().take(8).fold(0, |number, byte| number << 8 | u64::from(byte))
}
