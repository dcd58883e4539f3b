//! What a client does in one transaction, drawn at random.

use onecopy_core::{AccessSet, TableId};

use super::schema::{CYCLE, LISTS, REGISTERS, SEQUENCE, SET_GROUPS, SETS, group_of};
use crate::plan::{Find, Key, Plan, Strength};
use crate::random::Random;

/// A statement before it is bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Draft {
    pub(crate) plan: Plan,
    /// The sequences of which it takes the next values: that of [`SEQUENCE`] becomes the key of the inserted row.
    pub(crate) draws: &'static [TableId],
}

/// How a client ends its transaction, if nothing goes wrong before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Commit,
    Rollback,
    /// Its connection breaks while a statement (or the commit, if `step` is behind the last one) is under way.
    Vanish {
        step: usize,
    },
}

/// One transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Script {
    pub(crate) statements: Vec<Draft>,
    /// Between BEGIN and COMMIT; otherwise its only statement is a transaction of its own.
    pub(crate) bracketed: bool,
    pub(crate) read_only: bool,
    /// What transactions that begin alike have in common.
    pub(crate) form: u64,
    pub(crate) ending: Ending,
    /// The statement before which the client thinks for long.
    pub(crate) stalls_before: Option<usize>,
    /// The statement that the client cancels soon after sending it.
    pub(crate) cancels: Option<usize>,
    /// If that did not run, or a statement failed, the client returns to a savepoint before it and goes on; otherwise it rolls
    /// back.
    pub(crate) returns: bool,
    /// After so many executions of its statements, each further one brings down the server that executes it.
    pub(crate) poison: Option<u32>,
}

impl Script {
    /// A transaction that conflicts with every other.
    pub(crate) fn probe() -> Script {
        single(Plan::Probe.into())
    }

    /// The items that the whole transaction will touch.
    pub(crate) fn declares(&self) -> Option<AccessSet> {
        Some(self.statements.iter().flat_map(|draft| draft.plan.classify().access).collect())
    }
}

/// How often each kind of transaction is drawn, and what goes wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// A single read.
    pub single_read: u32,
    /// A single write.
    pub single_write: u32,
    /// One to five statements of any kind.
    pub anything: u32,
    /// A read of one row and then its update.
    pub read_then_update: u32,
    /// Reads of two rows and then an update of one of them: write skew, if it were possible.
    pub skew: u32,
    /// A read of a set's rows by a predicate and then an insert that it would have seen.
    pub insert_after_scan: u32,
    /// Several reads and nothing else: a long fork, if it were possible.
    pub reads: u32,
    /// Locking reads and then updates.
    pub locking: u32,
    /// A locking read or an update that is given up if it waits, as NOWAIT does, and then something else.
    pub impatient: u32,
    /// A delete and an insert of the unique value that it freed.
    pub replace_unique: u32,
    /// TRUNCATE.
    pub truncate: u32,
    /// Joins by key, some of which fail, and then a write; or one by itself.
    pub joins: u32,
    /// An insert that refers to a row, or a lock of a row that others may refer to.
    pub families: u32,
    /// LOCK TABLE.
    pub lock_table: u32,
    /// A change of several rows and then an insert of one that could be any.
    pub change_then_insert: u32,
    /// Writes, and changes of definitions, of which nobody knows what they are about.
    pub unclassified: u32,
    /// Inserted rows may have a value of a unique key, of which there are few.
    pub uniques: bool,
    /// Of 1,000 transactions so many are rolled back.
    pub rollback_per_mille: u64,
    /// Of 1,000 transactions so many lose their client.
    pub vanish_per_mille: u64,
    /// Of 1,000 transactions so many have a statement cancelled.
    pub cancel_per_mille: u64,
    /// Of 1,000 transactions so many stay idle for long.
    pub stall_per_mille: u64,
    /// Of 1,000 transactions so many bring down servers.
    pub poison_per_mille: u64,
}

/// Of 1,000 clients whose statement was given up so many return to a savepoint.
const RETURNS_PER_MILLE: u64 = 800;
/// Of 1,000 joins that are followed by a write so many fail.
const FAILS_PER_MILLE: u64 = 500;
/// Forms of BEGIN.
const FORMS: [u64; 5] = [1, 2, 3, 4, 5];

/// Draws scripts; values are never given twice, so that a history tells whose they are.
#[derive(Debug)]
pub(crate) struct Scripts {
    random: Random,
    mix: Mix,
    keys: u64,
    drawn: u64,
}

impl Scripts {
    pub(crate) fn new(random: Random, mix: Mix, keys: u64) -> Scripts {
        Scripts { random, mix, keys, drawn: 0 }
    }

    /// A time between two statements, at most so long.
    pub(crate) fn think_ns(&mut self, max_ns: u64) -> u64 {
        // Mostly at once: what happens between two statements of a transaction is what others do.
        if self.random.chance(300) { self.random.below(max_ns) } else { self.random.below(max_ns / 20 + 1) }
    }

    pub(crate) fn draw(&mut self) -> Script {
        let mix = &self.mix;
        let draw: fn(&mut Scripts) -> Script = self
            .random
            .weighted(&[
                (mix.single_read, Scripts::single_read as fn(&mut Scripts) -> Script),
                (mix.single_write, Scripts::single_write),
                (mix.anything, Scripts::anything),
                (mix.read_then_update, Scripts::read_then_update),
                (mix.skew, Scripts::skew),
                (mix.insert_after_scan, Scripts::insert_after_scan),
                (mix.reads, Scripts::reads),
                (mix.locking, Scripts::locking),
                (mix.impatient, Scripts::impatient),
                (mix.replace_unique, Scripts::replace_unique),
                (mix.truncate, Scripts::truncate),
                (mix.joins, Scripts::joins),
                (mix.families, Scripts::families),
                (mix.lock_table, Scripts::lock_table),
                (mix.change_then_insert, Scripts::change_then_insert),
                (mix.unclassified, Scripts::unclassified),
            ])
            .unwrap_or(Scripts::single_read);
        let mut script = draw(self);
        self.disturb(&mut script);
        script
    }

    fn disturb(&mut self, script: &mut Script) {
        let steps = script.statements.len();
        let any_step = |random: &mut Random| random.below(steps as u64) as usize;
        if self.random.chance(self.mix.vanish_per_mille) {
            let step = self.random.between(0, steps as u64) as usize;
            script.ending = Ending::Vanish { step: if script.bracketed { step } else { 0 } };
        } else if script.bracketed && self.random.chance(self.mix.rollback_per_mille) {
            script.ending = Ending::Rollback;
            script.statements.truncate(any_step(&mut self.random) + 1);
        }
        if self.random.chance(self.mix.cancel_per_mille) {
            script.cancels = Some(any_step(&mut self.random));
            script.returns = self.random.chance(RETURNS_PER_MILLE);
        }
        if self.random.chance(self.mix.stall_per_mille) {
            script.stalls_before = Some(self.random.between(0, steps as u64) as usize);
        }
        if self.random.chance(self.mix.poison_per_mille) {
            script.poison = Some(self.random.below(4) as u32);
        }
    }
}

/// The kinds of transactions.
impl Scripts {
    fn single_read(&mut self) -> Script {
        single(self.read())
    }

    fn single_write(&mut self) -> Script {
        single(self.write())
    }

    fn anything(&mut self) -> Script {
        let count = self.random.between(1, 5);
        let statements = (0..count)
            .map(|_| match self.random.below(20) {
                0..=8 => self.read(),
                9 | 10 => self.locking_read(),
                _ => self.write(),
            })
            .collect();
        self.bracketed(statements, FORMS[0])
    }

    fn read_then_update(&mut self) -> Script {
        let (table, find) = self.row();
        let read = self.read_of(table, find);
        let update = self.update(table, find);
        self.bracketed(vec![read, update], FORMS[1])
    }

    fn skew(&mut self) -> Script {
        let rows = [self.row(), self.row()];
        let mut statements: Vec<Draft> = rows.map(|(table, find)| self.read_of(table, find)).into();
        let (table, find) = self.random.pick(&rows);
        statements.push(self.update(table, find));
        self.bracketed(statements, FORMS[2])
    }

    fn insert_after_scan(&mut self) -> Script {
        let table = self.random.pick(&SETS);
        let find = self.predicate();
        let scan = Draft::from(Plan::Read { table, find, lock: None });
        let other = self.random.pick(&SETS);
        let write = match self.random.below(3) {
            0 => self.delete(other),
            _ => self.insert(other),
        };
        self.bracketed(vec![scan, write], FORMS[3])
    }

    fn reads(&mut self) -> Script {
        let count = self.random.between(2, 4);
        let statements = (0..count).map(|_| self.read()).collect();
        let read_only = self.random.chance(500);
        Script { read_only, ..self.bracketed(statements, FORMS[4]) }
    }

    fn locking(&mut self) -> Script {
        let (table, find) = self.row();
        let strength = self.random.pick(&[Strength::NoKeyUpdate, Strength::Update, Strength::Share]);
        let locking = Draft::from(Plan::Read { table, find, lock: Some(strength) });
        let mut statements = vec![self.read(), locking, self.update(table, find)];
        statements.drain(..self.random.below(2) as usize);
        self.bracketed(statements, FORMS[0])
    }

    fn impatient(&mut self) -> Script {
        if self.random.chance(400) {
            return self.impatient_between_read_and_update();
        }
        let mut statements = Vec::new();
        let mut anything = |scripts: &mut Scripts, at_least| {
            for _ in 0..scripts.random.between(at_least, 2) {
                statements.push(if scripts.random.chance(600) { scripts.read() } else { scripts.write() });
            }
            statements.len()
        };
        let given_up = anything(self, 0);
        anything(self, 1);
        let (table, find) = self.row();
        let wanted = if self.random.chance(500) { self.locking_read() } else { self.update(table, find) };
        statements.insert(given_up, wanted);
        let returns = self.random.chance(RETURNS_PER_MILLE);
        let form = self.random.pick(&FORMS);
        Script { cancels: Some(given_up), returns, ..self.bracketed(statements, form) }
    }

    /// What it has read at first must still be so when it is written, whatever was waited for, given up and read again meanwhile.
    fn impatient_between_read_and_update(&mut self) -> Script {
        let (table, find) = self.row();
        let read = self.read_of(table, find);
        let (other, at) = self.row();
        let wanted = if self.random.chance(500) { self.locking_read() } else { self.update(other, at) };
        let statements = vec![read, wanted, self.read(), self.update(table, find)];
        let form = self.random.pick(&FORMS);
        Script { cancels: Some(1), returns: true, ..self.bracketed(statements, form) }
    }

    fn replace_unique(&mut self) -> Script {
        let table = self.random.pick(&SETS);
        let mut statements = vec![self.delete(table), self.insert(table)];
        if self.random.chance(300) {
            statements.swap(0, 1);
        }
        self.bracketed(statements, FORMS[1])
    }

    fn truncate(&mut self) -> Script {
        let truncate = Draft::from(Plan::Truncate { table: self.random.pick(&SETS) });
        match self.random.below(10) {
            0..=4 => return single(truncate),
            // The second one waits, and is given up: the first one stands.
            5..=6 => {
                let again = Plan::Truncate { table: self.random.pick(&SETS) }.into();
                let statements = vec![truncate, again, self.read(), self.write()];
                return Script { cancels: Some(1), returns: true, ..self.bracketed(statements, FORMS[2]) };
            }
            _ => {}
        }
        let last = if self.random.chance(500) { self.write() } else { self.read() };
        let mut statements = vec![self.read(), truncate, last];
        statements.drain(..self.random.below(2) as usize);
        // It waits until nobody reads from a snapshot any more, and is given up meanwhile.
        let cancels = self.random.chance(300).then_some(statements.len() - 2);
        let returns = self.random.chance(RETURNS_PER_MILLE);
        Script { cancels, returns, ..self.bracketed(statements, FORMS[2]) }
    }

    fn joins(&mut self) -> Script {
        if self.random.chance(200) {
            return single(self.join(false));
        }
        let mut statements = Vec::new();
        // The joins are then executed at a home, by who has written something or will only read.
        let only_reads = match self.random.below(10) {
            0..=4 => {
                statements.push(self.write());
                false
            }
            5..=8 => {
                statements.push(self.locking_read());
                self.random.chance(700)
            }
            _ => false,
        };
        for _ in 0..self.random.between(1, 4) {
            let fails = self.random.chance(FAILS_PER_MILLE);
            statements.push(self.join(fails));
        }
        statements.push(match self.random.below(10) {
            _ if only_reads => self.read(),
            // Next time the joins are known to be followed by it, and are executed at a home at once.
            0..=3 => {
                let (table, key) = self.register();
                self.update(table, Find::Key(key))
            }
            4..=6 => self.write(),
            _ => self.read(),
        });
        let returns = self.random.chance(RETURNS_PER_MILLE);
        let form = self.random.pick(&FORMS);
        let joined = statements.len() - 1;
        let cancels = self.random.chance(300).then(|| self.random.below(joined as u64) as usize);
        // What it was shown changes meanwhile, or its home is lost.
        let stalls_before = self.random.chance(300).then(|| self.random.between(1, joined as u64) as usize);
        Script { cancels, returns, stalls_before, ..self.bracketed(statements, form) }
    }

    fn families(&mut self) -> Script {
        let parent = self.register();
        if self.random.chance(600) {
            let table = self.random.pick(&SETS);
            let child = self.insert_of(table, Some(parent));
            return if self.random.chance(500) {
                single(child)
            } else {
                self.bracketed(vec![child], FORMS[3])
            };
        }
        let find = Find::Key(parent.1);
        let lock = Plan::Read { table: REGISTERS, find, lock: Some(Strength::Update) };
        let statements = vec![lock.into(), self.update(REGISTERS, find)];
        self.bracketed(statements, FORMS[4])
    }

    /// Rows of a set are changed, and one is added: what was taken for the first does not do for the second.
    fn change_then_insert(&mut self) -> Script {
        let table = self.random.pick(&SETS);
        let find = self.predicate();
        let value = self.fresh();
        let mut insert = self.insert(table);
        if let Plan::Insert { coarse, .. } = &mut insert.plan {
            *coarse = true;
        }
        self.bracketed(vec![Plan::SetLast { table, find, value }.into(), insert], FORMS[3])
    }

    fn unclassified(&mut self) -> Script {
        let (table, key) = self.register();
        let read = Draft::from(Plan::ReadUnclassified { table, find: Find::Key(key) });
        let (value, defines) = (self.fresh(), self.random.chance(400));
        let write = Draft::from(Plan::Unclassified { table, key, value, defines });
        match self.random.below(4) {
            0 => return single(read),
            1 => return single(write),
            2 => return self.bracketed(vec![read, write], FORMS[1]),
            _ => {}
        }
        let mut statements = vec![self.read(), write, self.write()];
        statements.drain(..self.random.below(2) as usize);
        self.bracketed(statements, FORMS[2])
    }

    fn lock_table(&mut self) -> Script {
        let table = self.random.pick(&[REGISTERS, REGISTERS, LISTS[0], LISTS[1]]);
        let mut statements = vec![self.read(), Plan::Lock { table }.into(), self.read(), self.write()];
        if table != REGISTERS {
            // Others go on adding rows that are copied from there meanwhile.
            statements.insert(3, Plan::Lock { table: REGISTERS }.into());
        }
        statements.drain(..self.random.below(2) as usize);
        self.bracketed(statements, FORMS[2])
    }

    fn bracketed(&mut self, statements: Vec<Draft>, form: u64) -> Script {
        Script { bracketed: true, form, ..single_of(statements) }
    }
}

/// Statements.
impl Scripts {
    fn read(&mut self) -> Draft {
        let (table, find) = match self.random.below(10) {
            0..=4 => self.row(),
            5 => (self.random.pick(&LISTS), Find::All),
            6 => (REGISTERS, Find::Group(self.random.below(2))),
            7 => (self.random.pick(&LISTS), Find::Group(self.random.below(2))),
            8 => (self.random.pick(&SETS), self.predicate()),
            _ => return self.join(false),
        };
        self.read_of(table, find)
    }

    /// Of a register now and then the other column.
    fn read_of(&mut self, table: TableId, find: Find) -> Draft {
        match table == REGISTERS && self.random.chance(400) {
            true => Plan::ReadLast { table, find }.into(),
            false => Plan::Read { table, find, lock: None }.into(),
        }
    }

    fn locking_read(&mut self) -> Draft {
        let (table, find) = self.row();
        let strengths = [Strength::KeyShare, Strength::Share, Strength::NoKeyUpdate, Strength::Update];
        Plan::Read { table, find, lock: Some(self.random.pick(&strengths)) }.into()
    }

    fn write(&mut self) -> Draft {
        match self.random.below(20) {
            0..=10 => {
                let (table, find) = self.row();
                self.update(table, find)
            }
            11 => self.update(REGISTERS, Find::Group(1)),
            12 => {
                let table = self.random.pick(&LISTS);
                self.update(table, Find::Group(0))
            }
            13..=16 => {
                let table = self.random.pick(&SETS);
                self.insert(table)
            }
            _ => {
                let table = self.random.pick(&SETS);
                self.delete(table)
            }
        }
    }

    fn update(&mut self, table: TableId, find: Find) -> Draft {
        let draws: &[TableId] = if self.random.chance(250) { &[CYCLE] } else { &[] };
        Draft { draws, ..self.plain_update(table, find) }
    }

    fn plain_update(&mut self, table: TableId, find: Find) -> Draft {
        let value = self.fresh();
        if table == REGISTERS {
            return match self.random.chance(400) {
                true => Plan::SetLast { table, find, value }.into(),
                false => Plan::Set { table, find, value }.into(),
            };
        }
        match find {
            Find::Key(key) if self.random.chance(500) => {
                Plan::Upsert { table, key, group: group_of(key), value }.into()
            }
            _ => Plan::Append { table, find, value }.into(),
        }
    }

    fn join(&mut self, fails: bool) -> Draft {
        let table = self.random.pick(&SETS);
        let find = self.predicate();
        Plan::Join { table, find, parents: REGISTERS, fails }.into()
    }

    fn insert(&mut self, table: TableId) -> Draft {
        let parent = self.random.chance(500).then(|| self.register());
        self.insert_of(table, parent)
    }

    /// A row that is there from the start.
    fn register(&mut self) -> (TableId, Key) {
        (REGISTERS, Key(self.random.below(self.keys)))
    }

    fn insert_of(&mut self, table: TableId, parent: Option<(TableId, Key)>) -> Draft {
        // Above whatever the sequence gives.
        let key = Key(1_000_000 + self.fresh());
        let group = self.random.below(SET_GROUPS);
        let copies = self.random.chance(500).then(|| self.register());
        let coarse = self.random.chance(150);
        let plan = Plan::Insert { table, key, group, unique: self.unique(), parent, copies, coarse };
        let draws: &[TableId] = self.random.pick(&[
            &[SEQUENCE] as &[TableId],
            &[CYCLE],
            &[SEQUENCE, CYCLE],
            &[CYCLE, SEQUENCE],
            &[],
        ]);
        Draft { plan, draws }
    }

    fn delete(&mut self, table: TableId) -> Draft {
        // Keys of the sequence are the ones that can be guessed.
        let find = if self.random.chance(700) {
            Find::Key(Key(1 + self.random.below(30)))
        } else {
            Find::Group(self.random.below(SET_GROUPS))
        };
        Plan::Delete { table, find }.into()
    }

    /// One list or register.
    fn row(&mut self) -> (TableId, Find) {
        let table = self.random.pick(&[LISTS[0], LISTS[1], REGISTERS]);
        (table, Find::Key(Key(self.random.below(self.keys))))
    }

    fn predicate(&mut self) -> Find {
        if self.random.chance(300) { Find::All } else { Find::Group(self.random.below(SET_GROUPS)) }
    }

    fn unique(&mut self) -> Option<u64> {
        (self.mix.uniques && self.random.chance(600)).then(|| self.random.below(4))
    }

    fn fresh(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }
}

impl From<Plan> for Draft {
    fn from(plan: Plan) -> Draft {
        Draft { plan, draws: &[] }
    }
}

fn single(statement: Draft) -> Script {
    single_of(vec![statement])
}

fn single_of(statements: Vec<Draft>) -> Script {
    Script {
        statements,
        bracketed: false,
        read_only: false,
        form: 0,
        ending: Ending::Commit,
        stalls_before: None,
        cancels: None,
        returns: false,
        poison: None,
    }
}
