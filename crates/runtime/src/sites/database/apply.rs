//! What another site's update wrote, done again here: executions of one statement together, where that is the same.

use onecopy_classify::Scratch;
use onecopy_wire::backend::{self, Backend, row_count, tag};
use onecopy_wire::frontend::build;
use smallvec::SmallVec;

use super::{Answer, Begin, Database, Own, Ran, begin, is_not_its_own, run};
use crate::bulk::{self, Form, Forms, Step};
use crate::classifier::Classifier;
use crate::lane::{Lane, LaneError, StatementKey};
use crate::record::{Record, What};
use crate::sites::transaction::{self, Transaction};

#[cfg(test)]
pub(super) mod tests;

/// Statements of which it is known how they are put together.
const KNOWN_MAX: usize = 1_000;
/// How often a statement may fail together with others, and not by itself, before it is left alone. Where the order of rows decides (two that
/// exchange unique values), some do so now and then.
const FAILURES_MAX: u32 = 10;

/// How executions of a statement are put together.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// None if they cannot be.
    form: Option<Form>,
    failures: u32,
}

/// Why writes could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// They cannot be applied for their role or under their settings.
    #[error("a transaction of another site cannot be begun here: {0}")]
    NotBegun(String),
    /// They did here what they had not done there.
    #[error("{0}")]
    Diverged(String),
    /// Those of several transactions did so together; nothing is open.
    #[error("what several transactions wrote cannot be applied together")]
    Together,
}

/// What came of putting executions together.
enum Together {
    /// All is applied, and open.
    Applied,
    /// There is nothing to put together, and nothing has begun.
    Pointless,
    /// It did not do what was done there.
    Differs,
}

impl Database {
    /// Applies what a transaction wrote elsewhere, or several did that follow each other, and leaves it open.
    ///
    /// # Errors
    /// When the connection is lost, the server gives it up, or it does something else here than there. Of several that says nothing of any of them.
    pub async fn apply(
        &self,
        lane: &mut Lane,
        writes: &Record,
        classifier: &Classifier,
        are_several: bool,
    ) -> Result<(), ApplyError> {
        let checks_at_once = classifier.has_deferrable();
        let again = executed_again(writes);
        let tried = match again.as_slice() {
            [] => Together::Pointless,
            _ => self.apply_together(lane, writes, classifier).await?,
        };
        match tried {
            Together::Applied => return Ok(()),
            Together::Differs if are_several => return Err(ApplyError::Together),
            Together::Differs | Together::Pointless => {}
        }
        match apply_each(lane, writes, checks_at_once).await {
            // What the connection has prepared before may be at fault.
            Err(ApplyError::Diverged(why)) => {
                tracing::debug!(why, "what was written elsewhere is applied with everything prepared anew");
                lane.roll_back().await?;
                lane.unprepare_all();
                lane.command("DEALLOCATE ALL").await?;
                return apply_each(lane, writes, checks_at_once).await;
            }
            done => done?,
        }
        if let Together::Differs = tried {
            let mut all = self.known.lock();
            for key in again {
                all.entry(key.under(lane.read_under)).and_modify(|known| known.failures += 1);
            }
        }
        Ok(())
    }

    /// Applies executions of one statement as one. If that is not done, nothing is open.
    async fn apply_together(
        &self,
        lane: &mut Lane,
        writes: &Record,
        classifier: &Classifier,
    ) -> Result<Together, LaneError> {
        let mut record = writes.clone();
        transaction::reach(&mut record, classifier, &mut Scratch::default());
        lane.read_under = transaction::read_under(&record);
        let begin = Begin::Update { checks_at_once: classifier.has_deferrable() };
        let refused = match self.together(lane, &record, begin).await {
            Ok(Together::Differs) => "other numbers of rows".to_owned(),
            Ok(done) => return Ok(done),
            Err(LaneError::Database(fields)) if !is_not_its_own(&fields) => fields.message,
            Err(error) => return Err(error),
        };
        // Whatever it is that has failed: it is said of the statement that does so by itself.
        tracing::debug!(refused, "what was put together is applied one by one");
        lane.roll_back().await?;
        Ok(Together::Differs)
    }

    async fn together(&self, lane: &mut Lane, record: &Record, how: Begin) -> Result<Together, LaneError> {
        let under = lane.read_under;
        let mut forms = Forms::default();
        let mut is_begun = false;
        for write in record.writes.iter().filter(|write| write.reach.is_some()) {
            let What::Prepared { key, sql, types, .. } = &write.what else { continue };
            let known_as = key.under(under);
            if forms.contains_key(&known_as) {
                continue;
            }
            let known = self.known.lock().get(&known_as).cloned();
            let known = match known {
                Some(known) => known,
                None => {
                    if !std::mem::replace(&mut is_begun, true) {
                        begin(lane, record, how).await?;
                    }
                    let form = Form::of(sql, &lane.param_types(*key, sql, types).await?);
                    self.learn(known_as, Known { form, failures: 0 })
                }
            };
            forms.insert(known_as, known.form.filter(|_| known.failures < FAILURES_MAX));
        }
        let steps = bulk::arrange(&record.writes, &forms, under);
        if !is_begun && !steps.iter().any(|step| matches!(step, Step::Many(_))) {
            return Ok(Together::Pointless);
        }
        let own = if is_begun { Own::default() } else { Own::begin(lane, record, how)? };
        let (mut prepared, mut expected) = (Vec::new(), Vec::new());
        for step in &steps {
            let rows = match step {
                Step::Many(many) => {
                    prepared.extend(many.put(lane)?);
                    Some(many.rows())
                }
                Step::One(write) => {
                    match &write.what {
                        What::Prepared { key, sql, types, bind } => {
                            let (name, is_new) = lane.prepare(*key, sql, types)?;
                            prepared.extend(is_new.then_some(*key));
                            lane.put_bind(&name, bind);
                        }
                        What::Text(sql) => {
                            build::parse(&mut lane.output, "", sql, [])?;
                            build::bind(&mut lane.output, "", "", [], [], [])?;
                        }
                        What::Copy { .. } => continue,
                    }
                    write.rows
                }
            };
            build::execute(&mut lane.output, "", 0)?;
            expected.push(rows);
        }
        build::sync(&mut lane.output);
        lane.flush_while_reading().await?;
        match read_counts(lane).await {
            Ok(found) if found.get(own.commands..) == Some(&expected[..]) => Ok(Together::Applied),
            Ok(_) => Ok(Together::Differs),
            Err(error) => {
                own.forget(lane);
                prepared.into_iter().for_each(|key| lane.unprepare(key));
                Err(error)
            }
        }
    }

    fn learn(&self, key: StatementKey, known: Known) -> Known {
        let mut all = self.known.lock();
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.entry(key).or_insert(known).clone()
    }
}

/// Statements that were executed more than once.
fn executed_again(record: &Record) -> SmallVec<[StatementKey; 4]> {
    let mut met: SmallVec<[(StatementKey, bool); 16]> = SmallVec::new();
    for write in &record.writes {
        let What::Prepared { key, .. } = &write.what else { continue };
        match met.iter_mut().find(|(known, _)| known == key) {
            Some((_, is_repeated)) => *is_repeated = true,
            None => met.push((*key, false)),
        }
    }
    met.into_iter().filter(|(_, is_repeated)| *is_repeated).map(|(key, _)| key).collect()
}

/// Reads up to the ReadyForQuery; returns the numbers of rows of all commands.
async fn read_counts(lane: &mut Lane) -> Result<Vec<Option<u64>>, LaneError> {
    let (mut found, mut failure, mut is_ready) = (Vec::new(), None, false);
    while !is_ready {
        let head = lane.next_frame().await?;
        match backend::decode(head.tag, lane.body(head))? {
            Backend::CommandComplete(words) => found.push(row_count(words)),
            Backend::Error(fields) => {
                failure.get_or_insert_with(|| Box::new(fields.to_owned()));
            }
            Backend::ReadyForQuery(_) => is_ready = true,
            _ => {}
        }
        lane.consume(head);
    }
    failure.map_or(Ok(found), |fields| Err(LaneError::Database(fields)))
}

/// Applies each statement by itself.
async fn apply_each(lane: &mut Lane, writes: &Record, checks_at_once: bool) -> Result<(), ApplyError> {
    let transaction = Transaction::to_apply(writes.clone());
    let (ran, here) = run(lane, &transaction, Begin::Update { checks_at_once }, usize::MAX).await?;
    if let Ran::NotBegun(why) = ran {
        return Err(ApplyError::NotBegun(why));
    }
    if let Ran::Failed(Answer { error: Some(error), .. }) = &ran {
        let body = error.get(onecopy_wire::frame::HEAD_LEN..).unwrap_or_default();
        let said = match backend::decode(tag::ERROR_RESPONSE, body) {
            Ok(Backend::Error(fields)) => fields.to_owned().message,
            _ => "an error".to_owned(),
        };
        return Err(ApplyError::Diverged(format!("what was executed at another site fails here: {said}")));
    }
    let rows = |record: &Record| record.writes.iter().map(|write| write.rows).collect::<Vec<_>>();
    let (expected, found) = (rows(writes), rows(&here));
    if expected != found {
        return Err(ApplyError::Diverged(format!(
            "what was executed at another site changed other numbers of rows there ({expected:?}) than here ({found:?})"
        )));
    }
    Ok(())
}
