//! Types that a client declares for parameters by their object ids.
//!
//! Those of users' types are numbers that clients were told, and mean nothing to a replica. They become casts by name, so
//! that a statement means the same wherever it is prepared, replayed, or read from the log after a restart. So do types such as
//! `regclass`, whose values are OIDs: classification sees by the cast that what is made of them differs between replicas.

use onecopy_classify::name_types::name_type;
use onecopy_classify::prepared::replace_params;
use onecopy_wire::sqlstate::SqlState;

use super::Session;
use crate::errors::Failure;
use crate::object_ids::FIRST_USERS_OID;

/// How often definitions may change while a type is looked for.
const ATTEMPTS_MAX: usize = 3;

impl Session {
    /// A statement whose parameters of users' types are cast to them; `None` if it has none. Their declared types are taken
    /// out of `types`.
    pub(super) async fn with_types_by_name(
        &mut self,
        sql: &str,
        types: &mut [u32],
    ) -> Result<Option<String>, Failure> {
        let is_plain = |oid: &u32| *oid < FIRST_USERS_OID && name_type(*oid).is_none();
        if types.iter().all(is_plain) {
            return Ok(None);
        }
        let mut names = Vec::with_capacity(types.len());
        for oid in types.iter_mut() {
            names.push(match *oid {
                0..FIRST_USERS_OID => name_type(*oid).map(|name| format!("pg_catalog.{name}")),
                users => Some(self.type_by_number(users).await?),
            });
            if !is_plain(oid) {
                *oid = 0;
            }
        }
        Ok(Some(replace_params(sql, &mut self.scratch, |number| {
            let name = names.get((number as usize).checked_sub(1)?)?.as_ref()?;
            Some(format!("(${number}::{name})"))
        })))
    }

    /// How SQL writes a type.
    async fn type_by_number(&mut self, number: u32) -> Result<String, Failure> {
        for _ in 0..ATTEMPTS_MAX {
            let generation = self.shared.classifier.generation();
            match self.shared.object_ids.type_of(number, generation) {
                Some(Some(name)) => return Ok(name.to_string()),
                Some(None) => break,
                None => self.shared.object_ids.learn(None).await,
            }
        }
        if self.txn.as_ref().is_some_and(|txn| txn.catalogue.is_some())
            && let Some(name) = self.own_type(number).await
        {
            return Ok(name);
        }
        let what = format!("a parameter is declared to have the type with OID {number}, which is not known");
        Err(Failure::new(SqlState::UNDEFINED_OBJECT, what)
            .hint("Look the type up again; or leave the type open and write a cast, as in $1::mood."))
    }

    /// A type that the open transaction has made, and knows by its id at its home.
    async fn own_type(&mut self, oid: u32) -> Option<String> {
        let mut lane = self.open_lane()?;
        let query = format!(
            "SELECT pg_catalog.quote_ident(n.nspname) OPERATOR(pg_catalog.||) '.' \
             OPERATOR(pg_catalog.||) pg_catalog.quote_ident(t.typname) FROM pg_catalog.pg_type t \
             JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace \
             WHERE t.oid OPERATOR(pg_catalog.=) {oid}"
        );
        match lane.lent.lane.query(&query).await {
            Ok(rows) => {
                self.keep_lane(lane);
                rows.into_iter().flatten().flatten().next()
            }
            Err(error) => {
                // The next statement finds its transaction failed, or without its lane.
                tracing::warn!(%error, "look up a type inside a transaction");
                if error.is_database() {
                    self.keep_lane(lane)
                } else {
                    self.lose_lane(lane, &error)
                }
                None
            }
        }
    }
}
