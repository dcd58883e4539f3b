//! Text that a server may read as a date or time, and by its own clock or time zone: `now`, `today`, `12:00` without an offset.

use crate::value::oid;

/// Whether text may mean a moment that depends on the clock when read as a date or time, or as something that holds some:
/// `now`, `today`, `tomorrow`, `yesterday`.
pub(crate) fn has_clock_word(text: &str) -> bool {
    // Arrays, ranges and rows hold any number of dates.
    let begin = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
    let is_short = || {
        // The longest date that PostgreSQL reads is MAXDATELEN = 128 bytes, blanks and punctuation around it not counted.
        let counted = text.bytes().filter(|byte| !byte.is_ascii_punctuation() && !byte.is_ascii_whitespace());
        counted.take(161).count() <= 160
    };
    let mut search = ClockWords::default();
    (begin.starts_with(['{', '[', '(']) || is_short()) && {
        text.bytes().for_each(|byte| search.read(byte));
        search.finish()
    }
}

/// A search for words that name a moment by the clock, byte by byte: the one that everything uses which looks for them in
/// values.
///
/// Arrays, ranges and rows are read without their quotes and backslashes, which may stand inside of a word.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockWords {
    as_written: Word,
    unquoted: Word,
    found: bool,
}

/// The letters before: more than there is room for are no such word.
#[derive(Clone, Debug, Default)]
struct Word {
    letters: [u8; CLOCK_WORD_LEN_MAX],
    len: usize,
}

impl Word {
    fn push(&mut self, letter: u8) {
        if let Some(place) = self.letters.get_mut(self.len) {
            *place = letter;
        }
        self.len += 1;
    }

    /// Ends it; true if it is one of those.
    fn end(&mut self) -> bool {
        let len = std::mem::take(&mut self.len);
        self.letters.get(..len).is_some_and(is_clock_word)
    }
}

impl ClockWords {
    /// Reads the next byte.
    pub(crate) fn read(&mut self, byte: u8) {
        if byte.is_ascii_alphabetic() {
            self.as_written.push(byte);
            self.unquoted.push(byte);
            return;
        }
        self.found |= self.as_written.end();
        if !matches!(byte, b'"' | b'\\') {
            self.found |= self.unquoted.end();
        }
    }

    /// The value ends here; true if a word was found in it or in an earlier one.
    pub(crate) fn finish(&mut self) -> bool {
        self.found |= self.as_written.end() | self.unquoted.end();
        self.found
    }

    /// Whether a word was found so far.
    pub(crate) fn found(&self) -> bool {
        self.found
    }
}

const CLOCK_WORDS: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];
/// The longest of them, in letters.
const CLOCK_WORD_LEN_MAX: usize = 9;

/// Text in which a word stands that names a moment by the clock, as a regular expression whose case does not count: what
/// [`ClockWords`] finds, and more.
pub(crate) fn clock_words_pattern() -> String {
    let split = |word: &str| word.chars().map(String::from).collect::<Vec<_>>().join("[[:punct:]]*");
    format!("(^|[^a-z])({})([^a-z]|$)", CLOCK_WORDS.map(split).join("|"))
}

/// Whether a word names a moment by the clock, in any case.
pub(crate) fn is_clock_word(word: &[u8]) -> bool {
    CLOCK_WORDS.iter().any(|w| word.eq_ignore_ascii_case(w.as_bytes()))
}

/// Whether text that is read as a time with time zone, or as several, may leave the zone's offset to the session's time zone and
/// the present day, as `12:00` does and `12:00 Europe/Paris`.
pub(crate) fn lacks_offset(text: &str) -> bool {
    let text = text.replace(['\\', '"', '{', '}'], "");
    let has_offset = |time: &str| {
        let upper = time.trim().to_ascii_uppercase();
        let signed =
            upper.as_bytes().windows(2).any(|w| matches!(w[0], b'+' | b'-') && w[1].is_ascii_digit());
        signed || ["Z", "UTC", "GMT"].iter().any(|zone| upper.ends_with(zone))
    };
    !text.split(',').all(has_offset)
}

/// Whether values of a built-in type are, or consist of, dates or times of day.
pub(crate) fn holds_moments(type_oid: u32) -> bool {
    match type_oid {
        oid::DATE | oid::TIME | oid::TIMETZ | oid::TIMESTAMP | oid::TIMESTAMPTZ => true,
        // Their arrays.
        1182 | 1183 | 1270 | 1115 | 1185 => true,
        // tsrange, tstzrange, daterange, each followed by its array; then multiranges, and their arrays.
        3908..=3913 | 4533..=4535 | 6152 | 6153 | 6155 => true,
        _ => false,
    }
}

/// Whether a statement may hold a literal that names a moment by the clock: one that a server reads when it prepares the
/// statement, and then keeps.
#[must_use]
pub fn may_keep_moment(sql: &str) -> bool {
    let has_word = |text: &str| {
        let mut search = ClockWords::default();
        text.bytes().for_each(|byte| search.read(byte));
        search.finish()
    };
    // Where quotes may be something else, the whole text is looked at.
    let is_plain = !["--", "/*", "\\", "$$"].iter().any(|mark| sql.contains(mark));
    let first = usize::from(is_plain);
    (sql.contains('\'') || sql.contains("$$")) && sql.split('\'').skip(first).step_by(1 + first).any(has_word)
}

/// Whether text that is a date or time as a whole names a moment by the clock, as `today 12:00 UTC` does. Prose in which
/// such a word stands does not.
pub(crate) fn names_moment(text: &str) -> bool {
    let is_part = |word: &str| {
        let known = [
            "now",
            "today",
            "tomorrow",
            "yesterday",
            "allballs",
            "infinity",
            "epoch",
            "null",
            "am",
            "pm",
            "z",
        ];
        known.iter().any(|known| word.eq_ignore_ascii_case(known))
            || word.contains('/')
            || (3..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase())
    };
    let unquoted = text.replace(['\\', '"'], "");
    let words = unquoted.split(|c: char| !c.is_ascii_alphabetic() && c != '/' && c != '_');
    has_clock_word(text) && words.filter(|word| !word.is_empty()).all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_times_are_seen() {
        for (text, lacks) in [
            ("12:00", true),
            ("12:00 Europe/Paris", true),
            ("12:00+01", false),
            ("12:00:00.5 -05:30", false),
            ("12:00z", false),
            ("12:00 UTC", false),
            ("{12:00+01,13:00+01}", false),
            ("{12:00+01,13:00}", true),
            ("", true),
        ] {
            assert_eq!(lacks_offset(text), lacks, "{text}");
        }
    }

    #[test]
    fn words_for_moments_are_found_wherever_a_server_reads_them() {
        let (blanks, prose) = (" ".repeat(200), "it is as it was ".repeat(20));
        for (text, found) in [
            ("now".to_owned(), true),
            (format!("{blanks}now"), true),
            (format!("Today{blanks}"), true),
            (format!("{}now", "!.-".repeat(100)), true),
            ("{2020-01-01,now}".to_owned(), true),
            ("\u{b}{now}".to_owned(), true),
            (r"{no\w}".to_owned(), true),
            (r#"{"n\ow"}"#.to_owned(), true),
            (r#"[n"o"w,)"#.to_owned(), true),
            (r#"(1,n""ow)"#.to_owned(), true),
            ("nowhere".to_owned(), false),
            ("2020-01-01".to_owned(), false),
            // Longer than any date.
            (format!("{prose}now"), false),
        ] {
            assert_eq!(has_clock_word(&text), found, "{text}");
        }
    }

    #[test]
    fn literals_that_a_server_keeps_are_found_as_it_reads_them() {
        for (text, found) in [
            ("today 12:00 UTC", true),
            (r#"{"no\w"}"#, true),
            ("[now,infinity)", true),
            ("we do it now", false),
            (r#"{"when": "now", "what": "it"}"#, false),
        ] {
            assert_eq!(names_moment(text), found, "{text}");
        }
        for (sql, found) in [
            ("SELECT 'now'::date", true),
            (r"SELECT '{no\w}'::date[]", true),
            (r#"SELECT '{n"o"w}'::date[]"#, true),
            ("SELECT now() WHERE note = 'it'", false),
        ] {
            assert_eq!(may_keep_moment(sql), found, "{sql}");
        }
    }
}
