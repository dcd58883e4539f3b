//! What the first words of a text say of it: a front does not read it as SQL, since only the node that leads has a catalogue.

/// Whether a text is a COMMIT and surely nothing else.
pub(super) fn is_commit(sql: &str) -> bool {
    is_single(sql)
        && is_command(sql, &["commit", "end"])
        && sql
            .trim_end_matches(is_end)
            .split_whitespace()
            .skip(1)
            .all(|word| ["work", "transaction"].iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether a text may contain a COMMIT, as far as can be told without reading it as SQL.
pub(super) fn may_commit(sql: &str) -> bool {
    let mut words = sql.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| ["commit", "end"].iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether a text is surely of one statement: without any semicolon but at its end.
pub(super) fn is_single(sql: &str) -> bool {
    !sql.trim_end_matches(is_end).contains(';')
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || c == ';'
}

/// Whether a text may change what a session has beside its transactions, as far as can be told without reading it as SQL.
pub(super) fn may_change_session(sql: &str, is_committed: bool) -> bool {
    let lower = sql.to_ascii_lowercase();
    let mentions = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let is_one = is_single(sql);
    mentions(PREPARED_BY) && !is_one
        || is_committed && (mentions(&["set_config", "discard"]) || !is_one && mentions(SET_BY))
}

/// What prepares and forgets statements, whatever becomes of the transaction.
pub(super) const PREPARED_BY: &[&str] = &["prepare", "deallocate"];
/// What sets something for the session, if the transaction is committed.
pub(super) const SET_BY: &[&str] = &["set", "reset", "listen", "unlisten"];

/// Whether a text begins with one of these words.
pub(super) fn is_command(sql: &str, words: &[&str]) -> bool {
    let first = sql.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
    words.iter().any(|word| first.eq_ignore_ascii_case(word))
}

/// Whether a text begins with a ROLLBACK of the whole transaction: to a savepoint one cannot go back where the transaction is lost.
pub(super) fn gives_up(sql: &str) -> bool {
    let mut words = sql.split(|c: char| c.is_ascii_whitespace() || c == ';').filter(|word| !word.is_empty());
    let mut next = |wanted: &[&str]| {
        let word = words.next().unwrap_or("");
        wanted.iter().any(|wanted| word.eq_ignore_ascii_case(wanted)).then_some(()).ok_or(word)
    };
    if next(&["rollback", "abort"]).is_err() {
        return false;
    }
    let then = match next(&["work", "transaction"]) {
        Ok(()) => next(&[]).err(),
        Err(word) => Some(word),
    };
    !then.is_some_and(|word| word.eq_ignore_ascii_case("to") || word.eq_ignore_ascii_case("prepared"))
}
