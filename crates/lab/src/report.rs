//! One page: curves first, then what each claim says, what came out, and whether it holds.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use thiserror::Error;

use crate::claims::{Claim, Paper};
use crate::effort::Effort;
use crate::figures::{DrawError, Figure, figures_of};
use crate::questions::{Question, question};
use crate::results::Results;
use crate::variation::Variation;
use crate::verdict::{Outcome, Verdict, judge, number};

/// What is to be reported.
#[derive(Debug)]
pub struct Report {
    papers: Vec<PaperReport>,
    variations: Vec<Variation>,
    effort: Effort,
}

#[derive(Debug)]
struct PaperReport {
    paper: &'static Paper,
    figures: Vec<(Figure, String)>,
    claims: Vec<ClaimReport>,
}

#[derive(Debug)]
struct ClaimReport {
    claim: &'static Claim,
    verdict: Verdict,
    remark: Option<String>,
    /// Of a claim that does not hold: what comes of it in clusters that differ in one thing.
    elsewhere: Vec<(Variation, Verdict)>,
}

/// So many parts of a claim are shown one by one, whatever came of them.
const FEW: usize = 4;

/// How many claims came out how.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// They hold.
    pub hold: usize,
    /// They do not.
    pub fail: usize,
    /// A verdict is owed.
    pub open: usize,
    /// Nobody can decide them here.
    pub undecidable: usize,
}

/// Why a report cannot be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A figure cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// A file cannot be written.
    #[error("write {}: {error}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl Report {
    /// A report on these claims of each paper, asked of clusters with these differences.
    ///
    /// # Errors
    /// If a figure cannot be drawn.
    pub fn new(
        wanted: &[(&'static Paper, Vec<&'static Claim>)],
        variations: &[Variation],
        effort: &Effort,
        results: &Results,
    ) -> Result<Report, ReportError> {
        let mut papers = Vec::new();
        for (paper, claims) in wanted {
            let drawn = figures_of(paper, variations, effort, results).into_iter().map(|figure| {
                let svg = figure.svg()?;
                Ok((figure, svg))
            });
            let figures = drawn.collect::<Result<_, DrawError>>()?;
            let claims = claims.iter().map(|claim| {
                let question = question(claim, effort).varied(variations);
                let verdict = judge(&question.parts, results, effort.seeds);
                let elsewhere = if verdict.holds() == Some(false) {
                    elsewhere(claim, variations, effort, results)
                } else {
                    Vec::new()
                };
                ClaimReport { claim, verdict, remark: question.remark, elsewhere }
            });
            papers.push(PaperReport { paper, figures, claims: claims.collect() });
        }
        Ok(Report { papers, variations: variations.to_vec(), effort: effort.clone() })
    }

    /// The claims that do not hold.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static Claim> {
        let claims = self.papers.iter().flat_map(|paper| &paper.claims);
        claims.filter(|claim| claim.verdict.holds() == Some(false)).map(|claim| claim.claim).collect()
    }

    /// How many claims came out how.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for ClaimReport { verdict, .. } in self.papers.iter().flat_map(|paper| &paper.claims) {
            *match verdict.holds() {
                Some(true) => &mut tally.hold,
                Some(false) => &mut tally.fail,
                None if verdict.outcomes.is_empty() => &mut tally.undecidable,
                None => &mut tally.open,
            } += 1;
        }
        tally
    }

    /// In what the clusters differ from those that claims are decided on, if they do.
    fn differences(&self) -> Option<String> {
        let names: Vec<&str> = self.variations.iter().map(|variation| variation.name()).collect();
        (!names.is_empty())
            .then(|| format!("The clusters differ from those of the design: {}.", names.join(", ")))
    }

    /// The table of claims, for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(differences) = self.differences() {
            let _ = writeln!(text, "{differences}\n");
        }
        for claim in self.papers.iter().flat_map(|paper| &paper.claims) {
            let ClaimReport { claim: Claim { id, says, .. }, verdict, remark, .. } = claim;
            let _ = writeln!(text, "{id:<7} {:<14} {says}", claim.word());
            let is_telling = |outcome: &&Outcome| outcome.holds != Some(true) || verdict.outcomes.len() < FEW;
            let is_new = verdict.outcomes.len() >= FEW
                && verdict.outcomes.iter().all(|outcome| outcome.holds.is_none());
            if is_new {
                let _ = writeln!(text, "        ? none of its {} parts was run", verdict.outcomes.len());
            }
            for outcome in verdict.outcomes.iter().filter(|_| !is_new).filter(is_telling) {
                let paper = outcome
                    .paper
                    .map_or_else(String::new, |paper| format!(" (the paper: {})", number(paper)));
                let mark = match outcome.holds {
                    Some(true) => '+',
                    Some(false) => '-',
                    None => '?',
                };
                let _ = writeln!(text, "        {mark} {}: {}{paper}", outcome.label, outcome.ours);
            }
            if let Some(remark) = remark {
                let _ = writeln!(text, "          {remark}");
            }
            for line in claim.elsewhere_lines() {
                let _ = writeln!(text, "          {line}");
            }
        }
        text
    }

    /// The figures and the table of claims, as Markdown beside the figures' files.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let Effort { warm_up_s, measured_s, seeds, .. } = self.effort;
        let _ = writeln!(
            text,
            "Runs of {measured_s} s at least after {warm_up_s} s, seeds: {seeds}. {}\n",
            self.differences().unwrap_or_default()
        );
        for PaperReport { paper, figures, claims } in &self.papers {
            let _ = writeln!(text, "## {}\n\n{}\n", paper.title, paper.authors);
            for (Figure { name, title, .. }, _) in figures {
                let _ = writeln!(text, "![{title}]({name}.svg)\n");
            }
            let _ = writeln!(text, "| claim | what it says | the paper | here | |\n|---|---|---|---|---|");
            for claim in claims {
                let Claim { id, says, values, .. } = claim.claim;
                let papers: Vec<String> = values.iter().copied().map(number).collect();
                let (papers, here, word) = (papers.join(", "), claim.here().join("<br>"), claim.word());
                let _ = writeln!(text, "| {id} | {says} | {papers} | {here} | {word} |");
            }
            let _ = writeln!(text);
        }
        text
    }

    /// All of it as one page that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        let Tally { hold, fail, open, undecidable } = self.tally();
        let Effort { warm_up_s, measured_s, seeds, .. } = self.effort;
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { "onecopy: what the papers claim, rerun" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { "What the papers claim, rerun" }
                    p {
                        "The systems of " (self.papers.len()) " published paper(s) on replicated databases, run again on the core of "
                        "onecopy against simulated databases. Of their claims " b { (hold) " hold" } ", " b { (fail) " do not" }
                        ", " (open) " are open, and " (undecidable) " cannot be decided by running anything. "
                        "A curve shows how much a cluster does at most, in interactions a second, as databases are added: "
                        "straight up is what everybody wants, and flat means that another database is wasted."
                    }
                    p.small {
                        "Each figure is the mean of " (seeds) " runs of " (measured_s) " virtual seconds after " (warm_up_s)
                        " of warm-up, at the number of users with the highest throughput; ± is the 95 % interval."
                        @if seeds < 5 {
                            " These runs are short and few: verdicts are provisional. With fewer than 3 runs there are no "
                            "intervals, and what differs by 2 % counts as different."
                        }
                    }
                    @if let Some(differences) = self.differences() { p { b { (differences) } } }
                    (systems())
                    @for paper in &self.papers { (paper.html()) }
                }
            }
        };
        page.into_string()
    }
}

/// A claim's question of clusters that differ in one more thing each, where that changes anything of what it is about.
pub fn asked_elsewhere(
    claim: &Claim,
    variations: &[Variation],
    effort: &Effort,
) -> impl Iterator<Item = (Variation, Question)> {
    let asked = question(claim, effort).varied(variations);
    let others = Variation::ALL.into_iter().filter(|other| !variations.contains(other));
    let varied = others.map(move |other| (other, asked.clone().varied(&[other]), asked.clone()));
    varied.filter(|(_, varied, asked)| varied != asked).map(|(other, varied, _)| (other, varied))
}

/// What comes of a claim in clusters that differ in one more thing, as far as that was run: with one seed, since it is asked where
/// a difference comes from, not how large it is.
fn elsewhere(
    claim: &Claim,
    variations: &[Variation],
    effort: &Effort,
    results: &Results,
) -> Vec<(Variation, Verdict)> {
    let verdicts = asked_elsewhere(claim, variations, effort);
    let verdicts = verdicts.map(|(other, question)| (other, judge(&question.parts, results, 1)));
    // One part that fails says nothing of the others.
    let was_run = |verdict: &Verdict| verdict.outcomes.iter().all(|outcome| outcome.holds.is_some());
    verdicts.filter(|(_, verdict)| was_run(verdict)).collect()
}

/// The systems, for those who have not read the papers, as they are called in figures.
const SYSTEMS: [(&str, &str); 9] = [
    ("eager", "every write is done on every database before its user goes on; locks on whole tables"),
    (
        "fixed_load, fixed_conflict, variable_load",
        "users go on sooner; three ways to choose the database that reads: the least loaded for the whole transaction, the first \
         that is free of conflicts for the whole transaction, the least loaded for each read",
    ),
    ("conflict_aware", "the same, and each read goes where nothing has to be waited for"),
    (
        "versioning",
        "in place of locks, numbered versions of tables, which are passed on as soon as a table is done with",
    ),
    ("versioning_no_early_release, versioning_late_acquire", "versioning without one of its two ideas"),
    (
        "level0, level1, level2",
        "transactions are given up: writes as they arrive, writes in one order, and reads at most 30 s old",
    ),
    ("special", "the bookstore's own rules: some pages may be 30 s old"),
    ("onecopy", "this project: conflicts are counted on rows, and found out instead of declared"),
    (
        "bound",
        "what no system can exceed in which every database takes part in every write, and none has to wait",
    ),
];

fn systems() -> Markup {
    html! {
        details {
            summary { "What the names in the figures stand for" }
            table { @for (names, what) in SYSTEMS { tr { td.id { (names) } td { (what) } } } }
            p {
                "The sites are an online bookstore (TPC-W; its users browse, shop or order, with more writes in this order), an "
                "auction site and a bulletin board. Users think for 7 s on average between pages."
            }
        }
    }
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1500px;margin:2em auto;padding:0 1em;color:#222}\
    h1,h2{line-height:1.2}.small{color:#555;font-size:13px}.figures{display:flex;flex-wrap:wrap;gap:12px}\
    .figures svg{max-width:100%;height:auto;border:1px solid #ddd}table{border-collapse:collapse;width:100%}\
    td,th{border-bottom:1px solid #ddd;padding:6px 8px;text-align:left;vertical-align:top}\
    .holds{color:#0a6b2d;font-weight:600}.fails{color:#b3261e;font-weight:600}.open{color:#8a6d00;font-weight:600}\
    details{max-width:46em}summary{cursor:pointer}td.id{white-space:nowrap}";

impl PaperReport {
    fn html(&self) -> Markup {
        html! {
            h2 { (self.paper.title) }
            p.small { (self.paper.authors) }
            div.figures { @for (_, svg) in &self.figures { (PreEscaped(svg)) } }
            table {
                tr { th { "claim" } th { "what it says" } th { "the paper" } th { "here" } th { "" } }
                @for claim in &self.claims { (claim.html()) }
            }
        }
    }
}

impl ClaimReport {
    /// In a word.
    fn word(&self) -> &'static str {
        match self.verdict.holds() {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None if self.verdict.outcomes.is_empty() => "not decidable",
            None => "open",
        }
    }

    /// What came out here, in a few lines: of several parts, those that do not hold.
    fn here(&self) -> Vec<String> {
        let outcomes = &self.verdict.outcomes;
        let mut lines: Vec<String> = self.remark.iter().cloned().collect();
        match &outcomes[..] {
            [] => {}
            [outcome] => lines.push(outcome.ours.clone()),
            several => {
                let held = several.iter().filter(|outcome| outcome.holds == Some(true)).count();
                lines.push(format!("{held} of {} parts hold", several.len()));
                let others = several.iter().filter(|outcome| outcome.holds != Some(true));
                lines
                    .extend(others.clone().take(FEW).map(|other| format!("{}: {}", other.label, other.ours)));
                let more = others.count().saturating_sub(FEW);
                lines.extend((more > 0).then(|| format!("and {more} more")));
            }
        }
        lines.extend(self.elsewhere_lines());
        lines
    }

    /// What comes of it in clusters that differ in one thing.
    fn elsewhere_lines(&self) -> impl Iterator<Item = String> {
        self.elsewhere.iter().map(|(variation, verdict)| {
            let held = verdict.outcomes.iter().filter(|outcome| outcome.holds == Some(true)).count();
            let word = if verdict.holds() == Some(true) { "holds" } else { "does not hold" };
            let what = match &verdict.outcomes[..] {
                [outcome] => outcome.ours.clone(),
                outcomes => format!("{held} of {} parts", outcomes.len()),
            };
            format!("with {}: {word} ({what})", variation.name())
        })
    }

    fn html(&self) -> Markup {
        let Claim { id, says, section, figure, values, workloads, .. } = self.claim;
        let class = match self.verdict.holds() {
            Some(true) => "holds",
            Some(false) => "fails",
            None => "open",
        };
        let papers: Vec<String> = values.iter().copied().map(number).collect();
        html! {
            tr id=(id) {
                td.id { (id) div.small { "section " (section) @if let Some(figure) = figure { ", figure " (figure) } } }
                td { (says) div.small { (workloads.join(", ")) } }
                td { (papers.join(", ")) }
                td {
                    (self.outcomes())
                    @for line in self.elsewhere_lines() { div.small { (line) } }
                }
                td class=(class) { (self.word()) }
            }
        }
    }

    /// A single part is shown, several are folded.
    fn outcomes(&self) -> Markup {
        let outcomes = &self.verdict.outcomes;
        let held = outcomes.iter().filter(|outcome| outcome.holds == Some(true)).count();
        html! {
            @if let Some(remark) = &self.remark { (remark) }
            @if let [outcome] = &outcomes[..] {
                (outcome.ours) div.small { (outcome.label) }
            } @else if !outcomes.is_empty() {
                details open[held < outcomes.len() && outcomes.len() < 8] {
                    summary { (held) " of " (outcomes.len()) " parts hold" }
                    ul {
                        @for outcome in outcomes {
                            li class=[outcome.holds.map_or(Some("open"), |holds| (!holds).then_some("fails"))] {
                                (outcome.label) ": " (outcome.ours)
                                @if let Some(paper) = outcome.paper { " (the paper: " (number(paper)) ")" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes `report.html`, the same in short as `report.md`, and each figure as SVG, into a folder; returns the page's path.
///
/// # Errors
/// If a file cannot be written.
pub fn write_report(report: &Report, folder: &Path) -> Result<PathBuf, ReportError> {
    let on_write = |path: &Path, error| ReportError::Write { path: path.to_owned(), error };
    std::fs::create_dir_all(folder).map_err(|error| on_write(folder, error))?;
    let write = |name: String, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(|error| on_write(&path, error))?;
        Ok::<_, ReportError>(path)
    };
    for (figure, svg) in report.papers.iter().flat_map(|paper| &paper.figures) {
        write(format!("{}.svg", figure.name), svg)?;
    }
    write("report.md".to_owned(), &report.markdown())?;
    write("report.html".to_owned(), &report.html())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::papers;
    use crate::quantity::tests::{of, results};

    fn report() -> Report {
        let first = of("conflict_aware", 8);
        let (other, one) = (of("eager", 8), of("eager", 1));
        let results = results(&[
            (&first, &[24.0, 25.0, 24.5]),
            (&other, &[10.0, 10.4, 10.2]),
            (&one, &[2.0, 2.0, 2.0]),
        ]);
        let cas = &papers()[0];
        let claims = ["cas-05", "cas-08", "cas-22", "cas-28", "cas-47"];
        let claims = claims.map(|id| cas.claims.iter().find(|claim| claim.id == id).expect("it is there"));
        let effort = Effort { seeds: 3, ..Effort::quick() };
        Report::new(&[(cas, claims.to_vec())], &[], &effort, &results).expect("it is drawn")
    }

    #[test]
    fn claims_are_told_apart_by_what_came_of_them() {
        assert_eq!(report().tally(), Tally { hold: 2, fail: 0, open: 2, undecidable: 1 });
    }

    #[test]
    fn the_text_says_what_was_found_and_what_is_missing() {
        let text = report().text();
        for line in [
            "cas-05  holds          The same with more writes: by more.",
            "        + tpcw shopping, 8 databases: 2.40 ± 0.00 (the paper: 2.40)",
            "cas-08  open           The same when shopping.",
            "        ? tpcw shopping, 8 databases: not run: tpcw shopping, fixed_load, 8 databases (the paper: 1.60)",
            "cas-28  not decidable  A checkpoint of the whole 4 GB takes minutes and is left out of the cost.",
        ] {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
    }

    #[test]
    fn a_claim_is_asked_elsewhere_only_where_that_makes_a_difference_to_it() {
        let asked = |id: &str| {
            let claim = papers().iter().flat_map(|paper| &paper.claims).find(|claim| claim.id == id);
            let effort = Effort::quick();
            let others = asked_elsewhere(claim.expect("it is there"), &[], &effort);
            others.map(|(other, _)| other.name()).collect::<Vec<_>>()
        };
        let all_but = |others: &[&str]| {
            // Those from here on are about whole transactions.
            let names = Variation::ALL.map(Variation::name).into_iter();
            let names = names.take_while(|name| *name != Variation::RowsWritten.name());
            names.filter(|name| !others.contains(name)).collect::<Vec<_>>()
        };
        assert_eq!(
            asked("cas-06"),
            all_but(&[
                "queued",
                "own-peaks",
                "large-bookstore",
                "whole-items",
                "writes-count",
                "bracketed-pages",
                "on-tables",
                "measured-apply",
                "cut-tables",
                "repaired-column",
                "asking-reads"
            ])
        );
        // It is about chains only.
        assert_eq!(asked("gargamel-13"), ["mean-durations", "even-arrivals", "known-customers"]);
        // It is about sites.
        assert_eq!(
            asked("wan-04"),
            [
                "slow-middleware",
                "dear-applies",
                "dear-queries",
                "short-bursts",
                "long-bursts",
                "far-sites",
                "heavy-writes",
                "slow-links",
                "sequencer",
                "one-by-one",
                "few-connections",
                "two-tables",
                "this-machine"
            ]
        );
        // Of peers: conflicts are not thinned out, and there is no log.
        assert_eq!(
            asked("invalidation-18"),
            all_but(&[
                "shared",
                "users-of-four",
                "small-bookstore",
                "whole-items",
                "writes-count",
                "memory",
                "ten-tables",
                "half-conflicts",
                "quarter-conflicts",
                "few-conflicts",
                "bracketed-pages",
                "on-tables",
                "measured-apply",
                "repaired-column",
                "held-updates",
                "asking-reads"
            ])
        );
        // It has neither carts nor orders nor administrators.
        assert_eq!(
            asked("dv-04"),
            all_but(&[
                "queued",
                "own-peaks",
                "large-bookstore",
                "small-bookstore",
                "whole-items",
                "writes-count",
                "ten-tables",
                "light-admin",
                "free-carts",
                "long-orders",
                "on-tables",
                "measured-apply",
                "cut-tables",
                "asking-reads"
            ])
        );
        // It is about one conflict in a hundred already.
        assert_eq!(
            asked("cas-42"),
            all_but(&[
                "queued",
                "own-peaks",
                "large-bookstore",
                "whole-items",
                "writes-count",
                "half-conflicts",
                "quarter-conflicts",
                "few-conflicts",
                "bracketed-pages",
                "on-tables",
                "measured-apply",
                "cut-tables",
                "repaired-column",
                "asking-reads"
            ])
        );
        // Nothing is run for it.
        assert_eq!(asked("cas-47"), Vec::<&str>::new());
    }

    #[test]
    fn the_short_report_has_a_row_for_each_claim() {
        let text = report().markdown();
        for row in [
            "| cas-05 | The same with more writes: by more. | 2.40 | 2.40 ± 0.00 | holds |",
            "| cas-28 | A checkpoint of the whole 4 GB takes minutes and is left out of the cost. | ",
            "![",
        ] {
            assert!(text.contains(row), "{row}\nin\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("| cas-")).count(), 5);
    }

    #[test]
    fn of_clusters_that_differ_every_form_of_the_report_says_so() {
        let cas = &papers()[0];
        let vary = [Variation::Shared, Variation::Memory];
        let report = Report::new(&[(cas, Vec::new())], &vary, &Effort::quick(), &results(&[]));
        let report = report.expect("it is drawn");
        for text in [report.text(), report.markdown(), report.html()] {
            assert!(text.contains("differ from those of the design: shared, memory."), "{text}");
        }
        assert!(!self::report().markdown().contains("differ from"));
    }

    #[test]
    fn the_page_has_figures_and_needs_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = write_report(&report(), folder.path()).expect("it is written");
        let page = std::fs::read_to_string(path).expect("it is there");
        assert!(page.contains("<svg") && page.contains("id=\"cas-05\"") && page.contains("2 hold"), "{page}");
        assert!(!page.contains("src=") && !page.contains("href="), "{page}");
        assert!(folder.path().join("cas-figure-12.svg").exists());
    }
}
