//! Two doctors share a shift. One may go off call only while the other is on, so never may both be off.

use onecopy_sim::check::Operation;
use rand::Rng;

use super::super::client::{Client, On, Over};
use super::super::statement::Step;
use super::super::world;
use super::register_step;

const NAME: &str = "write skew";

pub(super) async fn run(client: &mut Client) {
    // What went wrong is recorded already.
    let _: Result<(), Over> = match client.random.random_range(0..6) {
        0 => look(client).await,
        1 => condition_in_the_statement(client).await,
        _ => decide_at_client(client).await,
    };
}

fn pick(client: &mut Client) -> (i64, i64) {
    let doctors = client.world.doctors();
    let doctor = client.random.random_range(doctors);
    (doctor, client.world.shift(doctor))
}

/// All doctors with their versions.
pub(super) fn read_range(doctors: std::ops::Range<i64>) -> Step {
    let sql = "SELECT id, version, on_call FROM torture_doctor WHERE id BETWEEN $1 AND $2";
    register_step(sql, [doctors.start, doctors.end - 1], doctors, world::doctor)
}

/// The two doctors of a shift, found by a column that is no key.
fn read_shift(client: &Client, shift: i64, lock: bool) -> Step {
    let sql = if lock {
        "SELECT id, version, on_call FROM torture_doctor WHERE shift = $1 AND shift = $2 FOR UPDATE"
    } else {
        "SELECT id, version, on_call FROM torture_doctor WHERE shift = $1 AND shift = $2"
    };
    of_shift(client, shift, sql)
}

/// A query for the doctors of a shift, with their versions.
fn of_shift(client: &Client, shift: i64, sql: &'static str) -> Step {
    let world = client.world.clone();
    let doctors: Vec<i64> = world.doctors().filter(|&doctor| world.shift(doctor) == shift).collect();
    register_step(sql, [shift, shift], doctors, world::doctor)
}

/// The same by way of another table, whose rows refer to the doctors.
fn read_joined(client: &Client, shift: i64) -> Step {
    let sql = "SELECT y.doctor, d.version, d.on_call FROM torture_duty y JOIN torture_doctor d ON d.id = y.doctor \
               WHERE y.shift = $1 AND y.shift = $2";
    of_shift(client, shift, sql)
}

/// Something that changes nothing of what others read, so that the transaction has a home before it reads.
fn note_seen(client: &mut Client) -> Step {
    let duty = client.random.random_range(client.world.doctors());
    let sql = "UPDATE torture_duty SET seen = $2 WHERE id = $1";
    Step::new(sql, &[duty, client.world.fresh()], Vec::new(), |_| Ok(Vec::new()))
}

fn count_on_call(client: &mut Client, answer: &super::super::statement::Answer) -> i64 {
    let on_call = (0..answer.rows.len()).map(|row| answer.int(row, 2).unwrap_or_default()).sum();
    if on_call < 1 {
        client.tally.broken("a doctor is on call", format!("both doctors of a shift are off: {answer:?}"));
    }
    on_call
}

async fn look(client: &mut Client) -> Result<(), Over> {
    let (_, shift) = pick(client);
    let mut open = client.begin(format!("{NAME}, look"), On::Main, true).await?;
    let step = read_shift(client, shift, false);
    let answer = client.step(&mut open, &step).await?;
    count_on_call(client, &answer);
    client.commit(open).await;
    Ok(())
}

async fn decide_at_client(client: &mut Client) -> Result<(), Over> {
    let (doctor, shift) = pick(client);
    let class = match client.random.random_range(0..10) {
        0..2 => "write skew, FOR UPDATE",
        2..4 => "write skew, joined",
        4..6 => "write skew, joined at home",
        _ => NAME,
    };
    let mut open = client.begin(class.to_owned(), On::Main, false).await?;
    if class.ends_with("at home") {
        let step = note_seen(client);
        client.step(&mut open, &step).await?;
    }
    let read = match class.contains("joined") {
        true => read_joined(client, shift),
        false => read_shift(client, shift, class.ends_with("FOR UPDATE")),
    };
    let answer = client.step(&mut open, &read).await?;
    let on_call = i64::from(count_on_call(client, &answer) < 2);
    let version = client.world.fresh();
    let sql = "UPDATE torture_doctor SET on_call = $2, previous = version, version = $3 WHERE id = $1";
    let write = Operation::Write { register: world::doctor(doctor), value: world::value(version) };
    client.step(&mut open, &Step::write(sql, &[doctor, on_call, version], write)).await?;
    client.commit(open).await;
    Ok(())
}

async fn condition_in_the_statement(client: &mut Client) -> Result<(), Over> {
    let (doctor, shift) = pick(client);
    let version = client.world.fresh();
    let sql = "UPDATE torture_doctor SET on_call = 0, previous = version, version = $3 WHERE id = $1 \
               AND (SELECT sum(on_call) FROM torture_doctor WHERE shift = $2) > 1 RETURNING previous";
    let register = world::doctor(doctor);
    let write = Operation::Write { register, value: world::value(version) };
    let step = Step::new(sql, &[doctor, shift, version], vec![write.clone()], move |answer| {
        if answer.rows.is_empty() {
            return Ok(Vec::new());
        }
        let before = Operation::Read { register, value: answer.int_or_null(0, 0)?.map(world::value) };
        Ok(vec![before, write.clone()])
    });
    client.batch(NAME, vec![step]).await;
    Ok(())
}
