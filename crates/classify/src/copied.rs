//! The data of a COPY FROM STDIN: whether a field of a column of dates or times holds a word such as `now`, which each
//! server would read by its own clock.
//!
//! Fields are told apart as the server does it (formats text and csv), byte by byte and across the borders of messages, so
//! that prose in other columns may hold such words. In binary form nothing is read by a clock.

use crate::ast::Copy;
use crate::catalogue::Column;
use crate::moment_text::ClockWords;

/// Which fields of a COPY may name a moment, and how its data are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedMoments {
    /// By field of a row, in order. What stands beyond them counts.
    counts: Vec<bool>,
    delimiter: u8,
    /// In format csv: the quote and what escapes it inside quotes.
    quote: Option<(u8, u8)>,
    /// The first row holds the columns' names.
    header: bool,
}

impl CopiedMoments {
    /// For a COPY into these columns, one for each field; None if no data can name a moment. An error if the data cannot be
    /// searched.
    pub(crate) fn of(copy: &Copy, columns: &[&Column]) -> Result<Option<CopiedMoments>, LetterQuotes> {
        if copy.format.as_deref() == Some("binary") || !columns.iter().any(|c| c.may_hold_moment()) {
            return Ok(None);
        }
        let byte = |text: &Option<String>, default: u8| match text.as_deref().map(str::as_bytes) {
            // What is longer than a byte is an error of which the server tells.
            Some([byte, ..]) => *byte,
            _ => default,
        };
        let is_csv = copy.format.as_deref() == Some("csv");
        let quote = byte(&copy.quote, b'"');
        let escape = byte(&copy.escape, quote);
        if is_csv && (quote.is_ascii_alphanumeric() || escape.is_ascii_alphanumeric()) {
            return Err(LetterQuotes);
        }
        let aligned = copy.encoding.as_ref().is_none_or(|name| keeps_ascii(name));
        Ok(Some(CopiedMoments {
            counts: columns.iter().map(|c| c.may_hold_moment() || !aligned).collect(),
            delimiter: byte(&copy.delimiter, if is_csv { b',' } else { b'\t' }),
            quote: is_csv.then_some((quote, escape)),
            // Where bytes of letters look like quotes, its end cannot be told.
            header: copy.header && aligned,
        }))
    }

    /// Begins to search the data of one execution.
    #[must_use]
    pub fn search(&self) -> MomentSearch {
        let mut classes = [Byte::Content; 256];
        match self.quote {
            None => classes[usize::from(b'\\')] = Byte::Escape,
            Some((quote, escape)) => {
                classes[usize::from(escape)] = Byte::Escape;
                classes[usize::from(quote)] = Byte::Quote;
            }
        }
        classes[usize::from(self.delimiter)] = Byte::Delimiter;
        classes[usize::from(b'\n')] = Byte::RowEnd;
        classes[usize::from(b'\r')] = Byte::RowEnd;
        let counts = self.counts.clone();
        let counting = !self.header && counts.first().is_none_or(|counts| *counts);
        MomentSearch {
            classes,
            counts,
            csv_escape: self.quote.map(|(_, escape)| escape),
            field: 0,
            in_header: self.header,
            counting,
            quoted: false,
            escape: Escape::None,
            words: ClockWords::default(),
        }
    }
}

/// QUOTE or ESCAPE is a letter or digit: it could stand in words and belong to none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LetterQuotes;

/// Whether no byte of a letter looks like ASCII in an encoding, so that the borders of fields can be trusted.
fn keeps_ascii(encoding: &str) -> bool {
    let name: String =
        encoding.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let is = |start: &&str| name.starts_with(*start);
    ["utf", "unicode", "sqlascii", "latin", "iso8859", "win125", "windows125", "koi8", "euc"].iter().any(is)
}

/// What a byte may mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    Content,
    Delimiter,
    RowEnd,
    Escape,
    Quote,
}

/// What has been read of an escape sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Escape {
    None,
    /// The byte that begins it.
    Begun,
    /// Its value so far, and how many digits may follow.
    Octal(u8, u8),
    Hex(u8, u8),
}

/// A search through the data of one COPY, message by message.
#[derive(Clone, Debug)]
pub struct MomentSearch {
    classes: [Byte; 256],
    counts: Vec<bool>,
    /// In format csv: what escapes quotes inside quotes.
    csv_escape: Option<u8>,
    /// The number of the field in its row.
    field: usize,
    in_header: bool,
    /// The field is one that counts.
    counting: bool,
    /// Inside quotes of format csv.
    quoted: bool,
    escape: Escape,
    words: ClockWords,
}

impl MomentSearch {
    /// Reads the next data; true if a word was found in these or earlier ones.
    pub fn read(&mut self, data: &[u8]) -> bool {
        let mut rest = data;
        while let [byte, after @ ..] = rest {
            if !self.counting && self.escape == Escape::None {
                let plain = |byte: &u8| self.classes[usize::from(*byte)] == Byte::Content;
                let skipped = rest.iter().take_while(|byte| plain(byte)).count();
                if skipped > 0 {
                    rest = &rest[skipped..];
                    continue;
                }
            }
            self.byte(*byte);
            rest = after;
        }
        self.words.found()
    }

    /// The data have ended; true if a word was found in them.
    pub fn finish(&mut self) -> bool {
        self.end_escape();
        self.words.finish()
    }

    fn byte(&mut self, byte: u8) {
        match self.csv_escape {
            Some(escape) => self.csv_byte(byte, escape),
            None => self.text_byte(byte),
        }
    }

    fn text_byte(&mut self, byte: u8) {
        match self.escape {
            Escape::None => {}
            Escape::Begun => {
                self.escape = Escape::None;
                return match byte {
                    b'0'..=b'7' => self.escape = Escape::Octal(byte - b'0', 2),
                    b'x' => self.escape = Escape::Hex(0, 2),
                    b'b' | b'f' | b'n' | b'r' | b't' | b'v' => self.content(b' '),
                    // Any other stands for itself, be it a letter, a delimiter or the end of a line.
                    other => self.content(other),
                };
            }
            Escape::Octal(value, left) => {
                if let (b'0'..=b'7', 1..) = (byte, left) {
                    self.escape = Escape::Octal(value.wrapping_mul(8).wrapping_add(byte - b'0'), left - 1);
                    return;
                }
                self.end_escape();
            }
            Escape::Hex(value, left) => {
                if let (Some(digit), 1..) = ((byte as char).to_digit(16), left) {
                    self.escape = Escape::Hex(value.wrapping_mul(16).wrapping_add(digit as u8), left - 1);
                    return;
                }
                self.end_escape();
            }
        }
        match self.classes[usize::from(byte)] {
            Byte::Escape => self.escape = Escape::Begun,
            Byte::Delimiter => self.next_field(),
            Byte::RowEnd => self.next_row(),
            _ => self.content(byte),
        }
    }

    /// The character that an escape sequence of format text stands for.
    fn end_escape(&mut self) {
        match std::mem::replace(&mut self.escape, Escape::None) {
            Escape::Octal(value, _) => self.content(value),
            // No digit followed.
            Escape::Hex(_, 2) => self.content(b'x'),
            Escape::Hex(value, _) => self.content(value),
            Escape::None | Escape::Begun => {}
        }
    }

    fn csv_byte(&mut self, byte: u8, escape: u8) {
        let class = self.classes[usize::from(byte)];
        if std::mem::replace(&mut self.escape, Escape::None) == Escape::Begun {
            if matches!(class, Byte::Escape | Byte::Quote) {
                return self.content(byte);
            }
            // Before anything else it is what it is.
            self.content(escape);
        }
        match class {
            Byte::Quote => {
                // Quotes may begin and end in the middle of a word. Where they escape themselves, two of them end and begin.
                self.quoted = !self.quoted;
            }
            Byte::Escape if self.quoted => self.escape = Escape::Begun,
            Byte::Delimiter if !self.quoted => self.next_field(),
            Byte::RowEnd if !self.quoted => self.next_row(),
            _ => self.content(byte),
        }
    }

    /// A byte of a field's value.
    fn content(&mut self, byte: u8) {
        if self.counting {
            self.words.read(byte);
        }
    }

    fn next_field(&mut self) {
        self.words.finish();
        self.field += 1;
        self.counting = !self.in_header && self.counts.get(self.field).is_none_or(|counts| *counts);
    }

    fn next_row(&mut self) {
        self.words.finish();
        self.field = 0;
        self.in_header = false;
        self.counting = self.counts.first().is_none_or(|counts| *counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(counts: &[bool], csv: Option<(u8, u8)>, header: bool) -> CopiedMoments {
        let delimiter = if csv.is_some() { b',' } else { b'\t' };
        CopiedMoments { counts: counts.to_vec(), delimiter, quote: csv, header }
    }

    /// Whether a word is found, however the data are cut into messages.
    fn finds(moments: &CopiedMoments, data: &[u8]) -> bool {
        let mut whole = moments.search();
        whole.read(data);
        let found = whole.finish();
        for cut in 0..=data.len() {
            let mut search = moments.search();
            search.read(&data[..cut]);
            search.read(&data[cut..]);
            assert_eq!(search.finish(), found, "cut at {cut}: {:?}", String::from_utf8_lossy(data));
        }
        found
    }

    #[test]
    fn words_are_found_in_fields_of_moments_only() {
        // An id, a date, prose.
        let text = moments(&[false, true, false], None, false);
        for (data, found) in [
            (&b"1\t2020-01-01\twe do it now\n"[..], false),
            (b"1\tnow\tx\n", true),
            (b"1\tToDaY 12:00\tx\n", true),
            (b"1\ttomorrow", true),
            (b"1\t{2020-01-01,yesterday}\tx\n", true),
            (b"now\t2020-01-01\ttoday\n", false),
            (b"1\t2020-01-01\tx\r\n2\tnow\ty\r\n", true),
            (b"1\t\\N\tx\n2\tnowhere\ty\n3\tsnow\tz\n", false),
            // Escaped delimiters and line ends belong to their field.
            (b"1\\\tnow\t2020-01-01\tx\n", false),
            (b"1\t2020-01-01\tx\\\nnow\n", false),
            (b"1\t2020-01-01\tx\\\\\n2\tnow\t\n", true),
            (b"1\t2020-01-01\ta\\tnow\n", false),
            // The server undoes these.
            (b"1\tno\\w\tx\n", true),
            (b"1\t\\now\tx\n", false),
            (b"1\t\\156ow\tx\n", true),
            (b"1\t\\x6eow\tx\n", true),
            (b"1\tno\\x77", true),
            (b"1\t\\xnow\tx\n", false),
            // And quotes and backslashes inside of arrays, ranges and rows.
            (b"1\t{no\\\\w}\tx\n", true),
            (b"1\t{\"n\\\\ow\"}\tx\n", true),
            (b"1\t[n\"o\"w,)\tx\n", true),
            (b"1\t(1,n\"\"ow)\tx\n", true),
            // Beyond what the table has.
            (b"1\t2020-01-01\tx\tnow\n", true),
        ] {
            assert_eq!(finds(&text, data), found, "{}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn quotes_and_headers_of_csv_are_understood() {
        let doubled = moments(&[false, true, false], Some((b'"', b'"')), false);
        let header = moments(&[false, true, false], Some((b'"', b'"')), true);
        let backslash = moments(&[false, true, false], Some((b'"', b'\\')), false);
        for (moments, data, found) in [
            (&doubled, &b"1,2020-01-01,\"now, now\"\n"[..], false),
            (&doubled, b"1,now,x\n", true),
            (&doubled, b"1,\"now\",x\n", true),
            (&doubled, b"1,n\"ow\",x\n", true),
            (&doubled, b"\"1,now,x\n2,today\",2020-01-01,x\n", false),
            (&doubled, b"\"a\"\"\nb\",now,x\n", true),
            (&doubled, b"1,2020-01-01,\"a\"\",\"\"b\nc\"\n2,now", true),
            (&header, b"id,today,note\n1,2020-01-01,x\n", false),
            (&header, b"\"id\nnow\",today,note\r\n1,today,x\n", true),
            (&backslash, b"\"a\\\",now,b\",2020-01-01,x\n", false),
            (&backslash, b"\"a\\\\\",now,x\n", true),
            (&backslash, b"a\\,now,x\n", true),
            (&backslash, b"\"a\\b\",\"now\",x\n", true),
            (&doubled, b"1,\"{\"\"n\\ow\"\"}\",x\n", true),
            (&doubled, b"1,\"[n\"\"o\"\"w,)\",x\n", true),
            (&backslash, b"1,\"{no\\\\w}\",x\n", true),
        ] {
            assert_eq!(finds(moments, data), found, "{}", String::from_utf8_lossy(data));
        }
    }
}
