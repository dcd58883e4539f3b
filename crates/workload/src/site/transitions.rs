//! Which page follows which: a table of probabilities, with a way back and an end.

use std::fmt::Write as _;

use crate::catalogue::{Catalogue, InteractionId};
use crate::random::{Random, unit};

/// After so many pages a visitor leaves.
const SESSION_PAGES_MAX: u32 = 1_000;

/// What is wrong with a table of transitions.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransitionsError {
    /// No such column.
    #[error("the transitions have no column {0:?}")]
    Column(String),
    /// A line is not two names and numbers.
    #[error("transitions, line {line}: `{text}` is no transition between known interactions")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// What may follow a page does not add up to 1.
    #[error("what follows {from} has a probability of {sum} in all")]
    Sum {
        /// The page.
        from: String,
        /// The sum, with four digits.
        sum: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Page(InteractionId),
    Back,
    End,
}

/// The probabilities of one kind of visitor.
#[derive(Clone, Debug)]
pub struct Transitions {
    start: InteractionId,
    /// For each page what may follow, in the order of the catalogue, then the way back, then the end; with the sum of
    /// probabilities up to it. Empty for a page that nobody comes to.
    rows: Vec<Vec<(Next, f64)>>,
}

/// A walk in progress.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The page on the screen.
    pub at: InteractionId,
    /// Where the way back leads, the last one first to be left.
    visited: Vec<InteractionId>,
    pages: u32,
}

impl Transitions {
    /// Reads one column of a table `from,to,...`; whoever visits begins at `start`. BACK and END are no pages. A sum of up to
    /// 1.01 is taken, and its end is cut: so the published tables are meant.
    ///
    /// # Errors
    /// [`TransitionsError`], with the line.
    pub fn parse(
        csv: &str,
        column: &str,
        catalogue: &Catalogue,
        start: InteractionId,
    ) -> Result<Transitions, TransitionsError> {
        let mut lines = csv.lines();
        let header = lines.next().unwrap_or_default();
        let place = header.split(',').position(|name| name == column);
        let place =
            place.filter(|place| *place >= 2).ok_or_else(|| TransitionsError::Column(column.to_owned()))?;
        let page = |name: &str| {
            let found = catalogue.interactions.iter().position(|interaction| interaction.id == name)?;
            Some(InteractionId(found as u16))
        };
        let mut rows = vec![Vec::new(); catalogue.interactions.len()];
        for (number, line) in (2..).zip(lines) {
            let read = || {
                let mut cells = line.split(',');
                let from = page(cells.next()?)?;
                let next = match cells.next()? {
                    "BACK" => Next::Back,
                    "END" => Next::End,
                    name => Next::Page(page(name)?),
                };
                let probability = cells.nth(place - 2)?.parse::<f64>().ok()?;
                Some((from, next, probability))
            };
            let (from, next, probability) =
                read().ok_or_else(|| TransitionsError::Line { line: number, text: line.to_owned() })?;
            if probability > 0.0 {
                rows[usize::from(from.0)].push((next, probability));
            }
        }
        for (from, row) in catalogue.interactions.iter().zip(&mut rows) {
            row.sort_by_key(|(next, _)| match next {
                Next::Page(page) => page.0,
                Next::Back => u16::MAX - 1,
                Next::End => u16::MAX,
            });
            let mut sum = 0.0;
            for (_, probability) in row.iter_mut() {
                sum += *probability;
                *probability = sum;
            }
            if !row.is_empty() && !(0.9999..=1.0101).contains(&sum) {
                let mut text = String::new();
                let _ = write!(text, "{sum:.4}");
                return Err(TransitionsError::Sum { from: from.id.clone(), sum: text });
            }
        }
        Ok(Transitions { start, rows })
    }

    /// A new visitor's walk.
    pub fn begin(&self) -> Walk {
        Walk { at: self.start, visited: Vec::new(), pages: 1 }
    }

    /// Goes on; `false` if the visitor leaves.
    ///
    /// Where a way back leads from is entered from a page that it leads to; entering any other page makes all of them
    /// forgotten.
    pub fn go_on(&self, walk: &mut Walk, random: &mut Random) -> bool {
        let draw = unit(random);
        let row = &self.rows[usize::from(walk.at.0)];
        let next = row.iter().find(|(_, upto)| draw < *upto).or(row.last()).map(|(next, _)| *next);
        walk.pages += 1;
        let next = match next {
            _ if walk.pages > SESSION_PAGES_MAX => return false,
            None | Some(Next::End) => return false,
            Some(Next::Back) => match walk.visited.pop() {
                Some(page) => page,
                None => return false,
            },
            Some(Next::Page(page)) => {
                if self.leads_back(page) {
                    walk.visited.push(walk.at);
                }
                page
            }
        };
        if !self.leads_back(next) {
            walk.visited.clear();
        }
        walk.at = next;
        true
    }

    fn leads_back(&self, page: InteractionId) -> bool {
        self.rows[usize::from(page.0)].iter().any(|(next, _)| *next == Next::Back)
    }

    /// The share of each page among so many pages of one visitor after another, in the order of the catalogue.
    pub fn shares(&self, pages: u32, random: &mut Random) -> Vec<f64> {
        let mut counts = vec![0_u32; self.rows.len()];
        let mut walk = self.begin();
        for _ in 0..pages {
            counts[usize::from(walk.at.0)] += 1;
            if !self.go_on(&mut walk, random) {
                walk = self.begin();
            }
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(pages)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    fn catalogue() -> Catalogue {
        let pages = ["A", "B", "C"]
            .map(|id| format!("[[interaction]]\nid = \"{id}\"\nname = \"\"\nclass = \"browse\"\n"));
        Catalogue::parse(&format!("name = \"x\"\ntable = []\n{}", pages.concat())).unwrap()
    }

    #[test]
    fn way_back_leads_to_where_one_came_from_and_no_further() {
        let csv = "from,to,p\nA,B,1\nB,C,0.5\nB,BACK,0.5\nC,BACK,1\n";
        let transitions = Transitions::parse(csv, "p", &catalogue(), InteractionId(0)).unwrap();
        let mut random = stream(1, 0);
        let mut walk = transitions.begin();
        let mut path = Vec::new();
        for _ in 0..200 {
            path.push(walk.at.0);
            assert!(transitions.go_on(&mut walk, &mut random));
        }
        assert!(path.contains(&2));
        for steps in path.windows(2) {
            // C is left to B only; A always for B.
            assert!(matches!(steps, [0, 1] | [1, 2] | [2, 1] | [1, 0]), "{steps:?}");
        }
    }

    #[test]
    fn tables_that_do_not_add_up_or_name_nothing_are_refused() {
        let parse = |csv: &str, column: &str| {
            Transitions::parse(csv, column, &catalogue(), InteractionId(0)).unwrap_err().to_string()
        };
        assert!(parse("from,to,p\n", "q").contains("\"q\""));
        assert!(parse("from,to,p\nA,D,1\n", "p").contains("line 2"));
        assert!(parse("from,to,p\nA,B,0.5\nA,END,0.4\n", "p").contains("0.9000"));
    }
}
