//! How large the bulletin board is, and its rows.

use std::ops::RangeInclusive;

use super::{RATING_MAX, RATING_MIN};
use crate::random::{self, Random, text, uniform};
use crate::site::{self, Line, SiteRows};
use crate::value::Timestamp;

/// Stories of so many days are new.
const NEW_DAYS: i64 = 30;
/// Stories of a day: 20 on average (DV: 15 to 25).
const STORIES_A_DAY: i64 = 20;
/// Comments of a story.
pub(super) const COMMENTS_MIN: i64 = 20;
/// One of so many users is an author and moderates.
const AUTHORS_AMONG: i64 = 10;
/// Words that titles are made of.
const DICTIONARY_WORDS: i64 = 4_563;

/// How large a bulletin board is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    days: i64,
    users: i64,
}

/// A scale that the schema cannot hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "a bulletin board of {days} days and {users} users is out of range: choose 1 to 100,000 days and 20 to 100,000,000 users"
)]
pub struct ScaleError {
    days: i64,
    users: i64,
}

impl Scale {
    /// That of DV 6.3.
    pub const OF_THE_PAPER: Scale = Scale { days: 3 * 365, users: 500_000 };

    /// A board with the stories of so many days (DV: three years, 1,095) and so many users (DV: 500,000).
    ///
    /// # Errors
    /// [`ScaleError`] if ids would not fit.
    pub fn new(days: i64, users: i64) -> Result<Scale, ScaleError> {
        let in_range = (1..=100_000).contains(&days) && (20..=100_000_000).contains(&users);
        in_range.then_some(Scale { days, users }).ok_or(ScaleError { days, users })
    }

    /// Days of which there are stories at the start.
    pub fn days(&self) -> i64 {
        self.days
    }

    /// Users at the start, without the anonymous one.
    pub fn users(&self) -> i64 {
        self.users
    }

    /// Stories at the start; they have the ids from 1 on, the oldest first.
    pub fn stories(&self) -> i64 {
        self.days * STORIES_A_DAY
    }

    /// How many of them are old.
    pub fn old_stories(&self) -> i64 {
        (self.days - NEW_DAYS).max(0) * STORIES_A_DAY
    }

    /// A user who is an author, or one who is none.
    pub(super) fn draw_user(&self, author: bool, random: &mut Random) -> i64 {
        let group = uniform(random, 1, self.users / AUTHORS_AMONG) * AUTHORS_AMONG;
        if author { group } else { group - uniform(random, 1, AUTHORS_AMONG - 1) }
    }
}

/// The rows of a bulletin board.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    scale: Scale,
    seed: u64,
    loaded_at: Timestamp,
}

/// What visitors see of a story or a submission.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) writer: i64,
    pub(super) category: i64,
    pub(super) title: String,
}

/// What visitors see of a comment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comment {
    pub(super) id: i64,
    pub(super) writer: i64,
    /// The comment that it answers; 0 if it answers the story.
    pub(super) parent: i64,
    pub(super) replies: i64,
    pub(super) rating: i64,
}

#[derive(Clone, Copy)]
enum Draw {
    User,
    Story,
    Submission,
    Comment,
}

impl Population {
    /// Categories of the distribution.
    pub const CATEGORIES: i64 = 85;
    /// Submissions that wait for an author at the start.
    pub const SUBMISSIONS: i64 = 20;
    /// A story has up to so many comments at the start.
    pub const COMMENTS_MAX: i64 = 50;

    /// The board of this scale and seed, with stories that lead up to `loaded_at`.
    pub fn new(scale: Scale, seed: u64, loaded_at: Timestamp) -> Population {
        Population { scale, seed, loaded_at }
    }

    /// A user's address.
    pub fn email(user: i64) -> String {
        format!("user{user}@board.example")
    }

    /// Whether a user is an author: 1 or 0.
    pub(super) fn access(user: i64) -> i64 {
        i64::from(user > 0 && user % AUTHORS_AMONG == 0)
    }

    /// A word of the dictionary: three syllables.
    pub fn word(random: &mut Random) -> String {
        const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
        const VOWELS: &[u8; 5] = b"aeiou";
        let mut number = uniform(random, 0, DICTIONARY_WORDS - 1) as usize;
        let mut word = String::new();
        for _ in 0..3 {
            word.push(char::from(CONSONANTS[number % 16]));
            number /= 16;
            word.push(char::from(VOWELS[number % 5]));
            number /= 5;
        }
        word
    }

    /// A title: three to eight words.
    pub fn title(random: &mut Random) -> String {
        let words: Vec<String> = (0..uniform(random, 3, 8)).map(|_| Self::word(random)).collect();
        words.join(" ")
    }

    /// The body of a story: 1 to 8 KB, short ones far more often.
    pub fn body(random: &mut Random) -> String {
        let length = zipf(random, 8) * 1_024;
        text(random, (length - 1_023) as usize, length as usize)
    }

    /// The text of a comment: up to 4 KB, short ones far more often; so long that the database of DV 6.3 has its size.
    pub fn comment(random: &mut Random) -> String {
        let length = zipf(random, 128) * 32;
        text(random, (length - 31) as usize, length as usize)
    }

    fn stream(&self, draw: Draw, key: i64) -> Random {
        random::stream(self.seed, ((draw as u64) << 48) | key as u64)
    }

    /// How large the board is.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// The stories that appeared in a period, both ends included, as far as there are any.
    pub(super) fn stories_of(&self, begin: Timestamp, end: Timestamp) -> RangeInclusive<i64> {
        let first_at = self.story_date(1).micros;
        let gap = 86_400_000_000 / STORIES_A_DAY;
        let first = (begin.micros - first_at + gap - 1).div_euclid(gap) + 1;
        let last = (end.micros - first_at).div_euclid(gap) + 1;
        first.max(1)..=last.min(self.scale.stories())
    }

    /// When a story appeared.
    fn story_date(&self, id: i64) -> Timestamp {
        let (day, of_day) = ((id - 1) / STORIES_A_DAY, (id - 1) % STORIES_A_DAY);
        let begin = self.loaded_at.plus_days(day - self.scale.days);
        Timestamp { micros: begin.micros + of_day * (86_400_000_000 / STORIES_A_DAY) }
    }

    fn copy_user(&self, id: i64, out: &mut String) -> u64 {
        let random = &mut self.stream(Draw::User, id);
        Line::new(out)
            .put(id)
            .put(text(random, 3, 20))
            .put(text(random, 3, 20))
            .put(site::nickname(id))
            .put(site::password(id))
            .put(Self::email(id))
            .put(0)
            .put(Self::access(id))
            .put(self.loaded_at)
            .end()
    }

    /// A story, or a submission; the stream goes on behind what was drawn.
    fn drawn(&self, draw: Draw, id: i64) -> (Story, Random) {
        let mut random = self.stream(draw, id);
        let writer = self.scale.draw_user(!matches!(draw, Draw::Submission), &mut random);
        let category = uniform(&mut random, 1, Self::CATEGORIES);
        let title = Self::title(&mut random);
        (Story { writer, category, title }, random)
    }

    /// What visitors see of a story.
    pub(super) fn story(&self, id: i64) -> Story {
        self.drawn(Draw::Story, id).0
    }

    /// What visitors see of a submission.
    pub(super) fn submission(&self, id: i64) -> Story {
        self.drawn(Draw::Submission, id).0
    }

    fn copy_story(&self, draw: Draw, id: i64, out: &mut String) -> u64 {
        let (Story { writer, category, title }, mut random) = self.drawn(draw, id);
        let is_submission = matches!(draw, Draw::Submission);
        let date = if is_submission { self.loaded_at } else { self.story_date(id) };
        Line::new(out)
            .put(id)
            .put(title)
            .put(Self::body(&mut random))
            .put(date)
            .put(writer)
            .put(category)
            .end()
    }

    /// The comments of a story, without titles and texts: some answer the story, others one that came before. The stream goes
    /// on behind what was drawn.
    pub(super) fn comments(&self, story: i64) -> (Vec<Comment>, Random) {
        let mut random = self.stream(Draw::Comment, story);
        let count = uniform(&mut random, COMMENTS_MIN, Self::COMMENTS_MAX);
        let first = (story - 1) * Self::COMMENTS_MAX;
        let parents: Vec<i64> = (1..=count).map(|number| uniform(&mut random, 0, number - 1)).collect();
        let mut replies = vec![0; parents.len() + 1];
        for parent in &parents {
            replies[*parent as usize] += 1;
        }
        let comments = (1..).zip(&parents).map(|(number, parent)| Comment {
            id: first + number,
            writer: uniform(&mut random, 0, self.scale.users),
            parent: if *parent == 0 { 0 } else { first + parent },
            replies: replies[number as usize],
            rating: uniform(&mut random, RATING_MIN, RATING_MAX),
        });
        (comments.collect(), random)
    }

    fn copy_comments(&self, story: i64, out: &mut String) -> u64 {
        let (comments, mut random) = self.comments(story);
        let titles: Vec<String> = comments.iter().map(|_| Self::title(&mut random)).collect();
        let date = self.story_date(story);
        let lines = comments.iter().zip(titles).map(|(comment, title)| {
            Line::new(out)
                .put(comment.id)
                .put(comment.writer)
                .put(story)
                .put(comment.parent)
                .put(comment.replies)
                .put(comment.rating)
                .put(date)
                .put(title)
                .put(Self::comment(&mut random))
                .end()
        });
        lines.sum()
    }
}

/// 1 to `ranks`, the n-th with a probability in proportion to 1/n.
fn zipf(random: &mut Random, ranks: i64) -> i64 {
    let all: f64 = (1..=ranks).map(|rank| 1.0 / rank as f64).sum();
    let mut left = random::unit(random) * all;
    for rank in 1..ranks {
        left -= 1.0 / rank as f64;
        if left < 0.0 {
            return rank;
        }
    }
    ranks
}

impl SiteRows for Population {
    fn keys(&self, table: usize) -> RangeInclusive<i64> {
        let (old, all) = (self.scale.old_stories(), self.scale.stories());
        match super::catalogue().tables[table].name.as_str() {
            "categories" => 1..=Self::CATEGORIES,
            // 0 is the anonymous one.
            "users" => 0..=self.scale.users,
            "stories" | "comments" => old + 1..=all,
            "old_stories" | "old_comments" => 1..=old,
            "submissions" => 1..=Self::SUBMISSIONS,
            _ => RangeInclusive::new(1, 0),
        }
    }

    fn copy(&self, table: usize, keys: RangeInclusive<i64>, out: &mut String) -> u64 {
        let name = super::catalogue().tables[table].name.as_str();
        let row = |key: i64, out: &mut String| match name {
            "categories" => Line::new(out).put(key).put(format_args!("Category {key}")).end(),
            "users" => self.copy_user(key, out),
            "stories" | "old_stories" => self.copy_story(Draw::Story, key, out),
            "submissions" => self.copy_story(Draw::Submission, key, out),
            "comments" | "old_comments" => self.copy_comments(key, out),
            _ => 0,
        };
        keys.map(|key| row(key, out)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_answer_comments_of_their_story_and_children_are_counted() {
        let population = Population::new(Scale::new(40, 100).unwrap(), 3, Timestamp::default());
        let table = |name: &str| usize::from(super::super::catalogue().table_index(name).unwrap().0);
        let mut stories = 0;
        for name in ["comments", "old_comments"] {
            let mut text = String::new();
            stories += population.keys(table(name)).count();
            let count = population.copy(table(name), population.keys(table(name)), &mut text);
            let rows: Vec<Vec<i64>> = text
                .lines()
                .map(|line| line.split('\t').take(6).map(|cell| cell.parse().unwrap()).collect())
                .collect();
            assert_eq!(rows.len() as u64, count);
            let mut replies = std::collections::HashMap::new();
            for row in &rows {
                *replies.entry(row[3]).or_insert(0) += 1;
            }
            for row in &rows {
                let [id, _, story, parent, childs, rating] = row[..] else { panic!("{row:?}") };
                assert_eq!(replies.get(&id).copied().unwrap_or(0), childs);
                assert!((-1..=5).contains(&rating));
                assert!(parent == 0 || (parent < id && (parent - 1) / 50 + 1 == story));
            }
        }
        assert_eq!(stories, 800);
    }

    #[test]
    fn short_bodies_are_far_more_common() {
        let mut random = random::stream(5, 0);
        let lengths: Vec<usize> = (0..2_000).map(|_| Population::body(&mut random).len()).collect();
        assert!(lengths.iter().all(|length| (1..=8_192).contains(length)));
        let short = lengths.iter().filter(|length| **length <= 1_024).count();
        let long = lengths.iter().filter(|length| **length > 7_168).count();
        assert!(short > 5 * long && long > 20, "{short} {long}");
    }
}
