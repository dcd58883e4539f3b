//! Values that every replica must use alike: the time, and the numbers of sequences.

use onecopy_classify::{Frozen, FrozenKind, FrozenValue};
use onecopy_core::{Event, TableId};
use onecopy_wire::sqlstate::SqlState;
use smallvec::SmallVec;

use super::Session;
use super::client::ClientError;
use crate::classifier::{Statement, rewrite_of};
use crate::errors::Failure;
use crate::scheduler::Directive;

/// A value of a sequence that was drawn for a statement before its transaction began.
#[derive(Clone, Debug)]
pub(super) struct Foreseen {
    kind: FrozenKind,
    value: i64,
}

impl Session {
    /// Values that every replica must use alike, found before the statement is sent anywhere.
    pub(super) async fn freeze(
        &mut self,
        statement: &Statement,
        in_block: bool,
    ) -> Result<Result<Vec<FrozenValue>, Failure>, ClientError> {
        let frozen = &rewrite_of(&statement.class, None, in_block).frozen;
        let drawn = self.draw(frozen, 1).await?;
        Ok(self.values(frozen, drawn, true))
    }

    /// The values of a statement whose rows are numbered: those of sequences are the first ones of blocks of `count`.
    /// They are not noted as drawn, since only the last number of a block is what currval() shows.
    pub(super) async fn freeze_blocks(
        &mut self,
        frozen: &[Frozen],
        count: u32,
    ) -> Result<Result<Vec<FrozenValue>, Failure>, ClientError> {
        let drawn = match count {
            0 => vec![Some(0); frozen.len()],
            count => self.draw(frozen, count).await?,
        };
        Ok(self.values(frozen, drawn, false))
    }

    fn values(
        &mut self,
        frozen: &[Frozen],
        drawn: Vec<Option<i64>>,
        note: bool,
    ) -> Result<Vec<FrozenValue>, Failure> {
        let not_yet = |message: String| Failure::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message);
        let mut values = Vec::with_capacity(frozen.len());
        let mut drawn = drawn.into_iter();
        for item in frozen {
            let value = match &item.kind {
                FrozenKind::TransactionTimestamp => self.transaction_timestamp(),
                FrozenKind::StatementTimestamp => timestamp(crate::clock::unix_micros()),
                FrozenKind::NextVal { schema, name } => {
                    let value = drawn.next().flatten().ok_or_else(|| self.no_value(schema, name))?;
                    if note {
                        self.drawn.draw(schema, name, value);
                    }
                    value.to_string()
                }
                FrozenKind::CurrVal { schema, name } => {
                    let value = self.drawn.of(schema, name).ok_or_else(|| {
                        not_yet(format!("currval of sequence \"{name}\" is not yet defined in this session"))
                    })?;
                    value.to_string()
                }
                FrozenKind::LastVal => self
                    .drawn
                    .last()
                    .ok_or_else(|| not_yet("lastval is not yet defined in this session".to_owned()))?
                    .to_string(),
            };
            values.push(FrozenValue(value));
        }
        Ok(values)
    }

    /// `now()`: one value for a transaction. What is bound before it is known whether more follows in the same
    /// transaction fixes the value for all of it.
    fn transaction_timestamp(&mut self) -> String {
        timestamp(match &self.txn {
            Some(txn) => txn.started_micros,
            None => *self.moment.get_or_insert_with(crate::clock::unix_micros),
        })
    }

    /// Draws what a statement needs of sequences, `count` values each; returns the first ones.
    async fn draw(&mut self, frozen: &[Frozen], count: u32) -> Result<Vec<Option<i64>>, ClientError> {
        let draws: Vec<&FrozenKind> =
            frozen.iter().map(|f| &f.kind).filter(|k| matches!(k, FrozenKind::NextVal { .. })).collect();
        let mut values = Vec::with_capacity(draws.len());
        let mut wants = SmallVec::new();
        for kind in draws {
            let own = match self.take_foreseen(kind) {
                Some(value) => Some(Some(value)),
                None => self.draw_own(kind, count).await,
            };
            if let (None, FrozenKind::NextVal { schema, name }) = (&own, kind) {
                wants.push((onecopy_classify::table_id(schema, name), count));
            }
            values.push(own);
        }
        let mut handed_out = self.draw_values(wants).await.into_iter();
        Ok(values.into_iter().map(|own| own.unwrap_or_else(|| handed_out.next().flatten())).collect())
    }

    /// Draws what a statement of a transaction needs that has not begun, for [`Session::take_foreseen`]. If that is all that is
    /// frozen of it, its frozen values are returned.
    pub(super) async fn foresee_values(
        &mut self,
        statement: &Statement,
    ) -> Result<(Vec<Foreseen>, Vec<FrozenValue>), ClientError> {
        let frozen = &rewrite_of(&statement.class, None, true).frozen;
        let drawn = self.draw(frozen, 1).await?;
        let kinds = frozen.iter().map(|frozen| &frozen.kind);
        let draws = kinds.filter(|kind| matches!(kind, FrozenKind::NextVal { .. })).cloned();
        let foreseen: Vec<Foreseen> =
            draws.zip(drawn).filter_map(|(kind, value)| Some(Foreseen { kind, value: value? })).collect();
        let values = if foreseen.len() == frozen.len() {
            foreseen.iter().map(|foreseen| FrozenValue(foreseen.value.to_string())).collect()
        } else {
            Vec::new()
        };
        Ok((foreseen, values))
    }

    /// What was drawn for it before its transaction began.
    fn take_foreseen(&mut self, kind: &FrozenKind) -> Option<i64> {
        let at = self.foreseen.iter().position(|foreseen| foreseen.kind == *kind)?;
        Some(self.foreseen.remove(at).value)
    }

    /// Asks the scheduler for numbers of sequences; the first ones, one a want.
    pub(super) async fn draw_values(&mut self, wants: SmallVec<[(TableId, u32); 2]>) -> Vec<Option<i64>> {
        if wants.is_empty() {
            return Vec::new();
        }
        let id = match &self.txn {
            Some(txn) => txn.id,
            None => self.shared.scheduler.new_txn(&self.mail),
        };
        let op = onecopy_core::OpId(u32::MAX);
        self.shared.scheduler.handle(Event::NextValues { txn: id, op, wants });
        let values = loop {
            match self.mail.clone().next(id).await {
                Directive::Values { values, .. } => break values.into_vec(),
                other => tracing::debug!(?other, "while drawing sequence values: ignoring"),
            }
        };
        if self.txn.is_none() {
            self.shared.scheduler.end_txn(id);
        }
        values
    }
}

/// Microseconds since 1970 as the text of a timestamptz.
pub fn timestamp(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{fraction:06}+00")
}

/// Year, month and day of the proleptic Gregorian calendar from days since 1970-01-01, by counting in eras of 400
/// years that begin in March.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn timestamps_are_written_as_postgresql_reads_them() {
        assert_eq!(timestamp(0), "1970-01-01 00:00:00.000000+00");
        assert_eq!(timestamp(1_790_000_000_123_456), "2026-09-21 14:13:20.123456+00");
        assert_eq!(timestamp(951_782_400_000_000), "2000-02-29 00:00:00.000000+00");
    }
}
