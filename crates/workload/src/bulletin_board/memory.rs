//! A bulletin board in memory, which answers a visitor's statements where no database is at hand: in simulations that care for
//! times and not for contents.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use super::catalogue;
use super::population::{Comment, Population};
use crate::catalogue::StatementId;
use crate::client::Rows;
use crate::random::{stream, uniform};
use crate::value::{Timestamp, Value};

/// A bulletin board in memory.
///
/// It answers with what visitors read, in the columns where they read it; other columns are NULL, and rows of which nothing is
/// read are left out. Searches find what was loaded; which old comments have a subject is drawn rather than looked up, about
/// as many as there are. It knows no transactions: what it is told it keeps at once. A clone shares what was loaded.
#[derive(Clone, Debug)]
pub struct Memory {
    loaded: Arc<Loaded>,
    /// Stories that came later, the oldest first: id, writer, category.
    stories: Vec<(i64, i64, i64)>,
    /// Writer and category, by id.
    submissions: BTreeMap<i64, (i64, i64)>,
    /// Comments that came later, by story.
    comments: HashMap<i64, Vec<Comment>>,
    /// Stories of those.
    story_of: HashMap<i64, i64>,
    /// Replies and points that a comment got later.
    replies: HashMap<i64, i64>,
    points: HashMap<i64, i64>,
}

/// What the board starts with.
#[derive(Debug)]
struct Loaded {
    population: Population,
    /// Writers and categories of stories by their ids, from 1 on.
    stories: Vec<(i64, i64)>,
    by_writer: HashMap<i64, Vec<i64>>,
    /// Stories by the words of their titles, new ones first.
    by_word: HashMap<String, Vec<i64>>,
    /// New comments with their stories by the words of their subjects.
    comments_by_word: HashMap<String, Vec<(i64, i64)>>,
}

/// What a statement asks of the board, or tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Nothing comes back, or nothing that somebody reads.
    Unread,
    Changed,
    Categories,
    Latest,
    OfCategory,
    OfPeriod {
        old: bool,
    },
    Story {
        old: bool,
    },
    TopComments,
    Replies {
        rated: bool,
    },
    Rating,
    Auth,
    StoryTitles {
        old: bool,
    },
    NewSubjects,
    OldSubjects,
    OfWriters {
        old: bool,
    },
    Submissions,
    Submission,
    Submit,
    Drop,
    Publish,
    Comment,
    Answered,
    Rate,
}

/// By statement.
static ANSWERS: LazyLock<Vec<Answer>> = LazyLock::new(|| {
    let answer = |id: &str| match id {
        "browse_categories.list" | "submit_story.categories" => Answer::Categories,
        "sod.list" => Answer::Latest,
        "browse_stories_category.page" => Answer::OfCategory,
        "older_stories.new" => Answer::OfPeriod { old: false },
        "older_stories.old" => Answer::OfPeriod { old: true },
        "view_story.story" => Answer::Story { old: false },
        "view_story.old" => Answer::Story { old: true },
        "view_story.top" | "view_story.oldtop" | "view_comment.top" | "view_comment.oldtop" => {
            Answer::TopComments
        }
        "view_story.replies" | "view_story.oldreplies" => Answer::Replies { rated: false },
        "view_comment.replies" | "view_comment.oldreplies" => Answer::Replies { rated: true },
        "store_moderation.comment" | "store_moderation.oldcomment" => Answer::Rating,
        "store_comment.auth" | "store_story.auth" => Answer::Auth,
        "search_stories.new" => Answer::StoryTitles { old: false },
        "search_stories.old" => Answer::StoryTitles { old: true },
        "search_comments.new" => Answer::NewSubjects,
        "search_comments.old" => Answer::OldSubjects,
        "search_users.new" => Answer::OfWriters { old: false },
        "search_users.old" => Answer::OfWriters { old: true },
        "review_stories.list" => Answer::Submissions,
        "accept_story.get" => Answer::Submission,
        "store_story.submit" => Answer::Submit,
        "accept_story.drop" | "reject_story.drop" => Answer::Drop,
        "store_story.publish" | "accept_story.publish" => Answer::Publish,
        "store_comment.insert" | "store_comment.oldinsert" => Answer::Comment,
        "store_comment.parent" | "store_comment.oldparent" => Answer::Answered,
        "store_moderation.rate" | "store_moderation.oldrate" => Answer::Rate,
        "register_user.insert" | "store_moderation.user" | "store_moderation.log" => Answer::Changed,
        _ => Answer::Unread,
    };
    catalogue().statements.iter().map(|statement| answer(&statement.id)).collect()
});

/// Stories or comments on a page, as the statements say.
const PAGE: usize = super::PAGE_STORIES as usize;
/// Stories of the day, and submissions, on their pages.
const LATEST: usize = 10;
/// Of so many subjects one has a given word: three to eight words of a dictionary each.
const SUBJECTS_FOR_A_WORD: i64 = 830;

impl Memory {
    /// A freshly loaded board.
    pub fn new(population: Population) -> Memory {
        let submission = |id| {
            let drawn = population.submission(id);
            (id, (drawn.writer, drawn.category))
        };
        Memory {
            submissions: (1..=Population::SUBMISSIONS).map(submission).collect(),
            loaded: Arc::new(Loaded::new(population)),
            stories: Vec::new(),
            comments: HashMap::new(),
            story_of: HashMap::new(),
            replies: HashMap::new(),
            points: HashMap::new(),
        }
    }

    /// The answer to a statement of the catalogue with its parameters; empty if it is of another workload.
    pub fn answer(&mut self, statement: StatementId, params: &[Value]) -> Rows {
        let int = |place: usize| params.get(place).and_then(Value::as_int).unwrap_or(0);
        let text = |place: usize| params.get(place).and_then(Value::as_text).unwrap_or_default();
        let moment = |place: usize| match params.get(place) {
            Some(Value::Timestamp(moment)) => *moment,
            _ => Timestamp::default(),
        };
        let Some(answer) = ANSWERS.get(usize::from(statement.0)) else { return Rows::default() };
        match *answer {
            Answer::Unread => Rows::default(),
            Answer::Changed => Rows::changed(1),
            Answer::Categories => {
                Rows::returned((1..=Population::CATEGORIES).map(|id| vec![Value::Int(id)]).collect())
            }
            Answer::Latest => rows(self.newest().take(LATEST).map(|(id, writer, _)| (id, writer)), 4),
            Answer::OfCategory => {
                let (category, offset) = (int(0), offset(int(1)));
                let found = self.newest().filter(|(_, _, of)| *of == category);
                rows(found.skip(offset).take(PAGE).map(|(id, writer, _)| (id, writer)), 4)
            }
            Answer::OfPeriod { old } => {
                let found = self.loaded.population.stories_of(moment(0), moment(1)).rev();
                let found = found.filter(|id| self.is_old(*id) == old).skip(offset(int(2)));
                rows(found.take(PAGE).map(|id| (id, self.loaded.writer(id))), 4)
            }
            Answer::Story { old } => self.story(int(0), old),
            Answer::TopComments => {
                let threshold = int(1);
                self.thread(int(0), |comment| comment.parent == 0 && comment.rating >= threshold)
            }
            Answer::Replies { rated } => {
                let (parent, least) = (int(0), if rated { int(1) } else { i64::MIN });
                let Some(story) = self.story_of(parent) else { return Rows::default() };
                self.thread(story, |comment| comment.parent == parent && comment.rating >= least)
            }
            Answer::Rating => {
                let found = self.story_of(int(0)).and_then(|story| self.comment(story, int(0)));
                Rows::returned(
                    found.map(|found| vec![found.writer.into(), found.rating.into()]).into_iter().collect(),
                )
            }
            Answer::Auth => {
                let user = text(0).trim_start_matches(|letter: char| !letter.is_ascii_digit());
                let user: i64 = user.parse().unwrap_or(0);
                Rows::returned(vec![vec![user.into(), Population::access(user).into()]])
            }
            Answer::StoryTitles { old } => {
                let found = self.loaded.by_word.get(text(0).trim_matches('%')).into_iter().flatten();
                let found = found.copied().filter(|id| self.is_old(*id) == old).skip(offset(int(1)));
                rows(found.take(PAGE).map(|id| (id, self.loaded.writer(id))), 3)
            }
            Answer::NewSubjects => {
                let found = self.loaded.comments_by_word.get(text(0).trim_matches('%'));
                let found = found.into_iter().flatten().skip(offset(int(1))).take(PAGE);
                Rows::returned(found.map(|(id, story)| found_comment(*id, *story)).collect())
            }
            Answer::OldSubjects => self.old_subjects(text(0), int(1)),
            Answer::OfWriters { old } => {
                let writers = self.loaded.users_named(text(0).trim_end_matches('%'));
                let found = writers.filter_map(|user| self.loaded.by_writer.get(&user)).flatten();
                let found = found.copied().filter(|id| self.is_old(*id) == old).skip(offset(int(1)));
                rows(found.take(PAGE).map(|id| (id, self.loaded.writer(id))), 3)
            }
            Answer::Submissions => {
                let newest = self.submissions.iter().rev().take(LATEST);
                rows(newest.map(|(id, (writer, _))| (*id, *writer)), 4)
            }
            Answer::Submission => {
                let Some((writer, category)) = self.submissions.get(&int(0)) else { return Rows::default() };
                let mut row = row(int(0), *writer, 4);
                row.push((*category).into());
                Rows::returned(vec![row])
            }
            Answer::Submit => {
                self.submissions.insert(int(0), (int(4), int(5)));
                Rows::changed(1)
            }
            Answer::Drop => Rows::changed(u64::from(self.submissions.remove(&int(0)).is_some())),
            Answer::Publish => {
                self.stories.push((int(0), int(4), int(5)));
                Rows::changed(1)
            }
            Answer::Comment => {
                let (id, writer, story, parent) = (int(0), int(1), int(2), int(3));
                let comment = Comment { id, writer, parent, replies: 0, rating: 0 };
                self.comments.entry(story).or_default().push(comment);
                self.story_of.insert(id, story);
                Rows::changed(1)
            }
            Answer::Answered => {
                *self.replies.entry(int(0)).or_default() += 1;
                Rows::changed(1)
            }
            Answer::Rate => {
                *self.points.entry(int(0)).or_default() += int(1);
                Rows::changed(1)
            }
        }
    }

    fn is_old(&self, story: i64) -> bool {
        story <= self.loaded.population.scale().old_stories()
    }

    /// New stories with their writers and categories, the newest first.
    fn newest(&self) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        let old = self.loaded.population.scale().old_stories();
        let all = self.loaded.population.scale().stories();
        let loaded = (old + 1..=all).rev().zip(self.loaded.stories.iter().rev());
        let loaded = loaded.map(|(id, (writer, category))| (id, *writer, *category));
        self.stories.iter().rev().copied().chain(loaded)
    }

    fn story(&self, id: i64, old: bool) -> Rows {
        let added = || self.stories.iter().find(|(known, ..)| *known == id).map(|(_, writer, _)| *writer);
        let writer = self.loaded.find(id).map(|(writer, _)| writer).or_else(added);
        rows(writer.filter(|_| self.is_old(id) == old).map(|writer| (id, writer)).into_iter(), 4)
    }

    fn story_of(&self, comment: i64) -> Option<i64> {
        let loaded = (comment - 1).div_euclid(Population::COMMENTS_MAX) + 1;
        let is_loaded = (1..=self.loaded.population.scale().stories()).contains(&loaded);
        self.story_of.get(&comment).copied().or(is_loaded.then_some(loaded))
    }

    /// All comments of a story, as they are now.
    fn comments(&self, story: i64) -> impl Iterator<Item = Comment> + '_ {
        let loaded = self.loaded.find(story).map(|_| self.loaded.population.comments(story).0);
        let all =
            loaded.into_iter().flatten().chain(self.comments.get(&story).into_iter().flatten().copied());
        all.map(|comment| Comment {
            replies: comment.replies + self.replies.get(&comment.id).copied().unwrap_or(0),
            rating: comment.rating + self.points.get(&comment.id).copied().unwrap_or(0),
            ..comment
        })
    }

    fn comment(&self, story: i64, id: i64) -> Option<Comment> {
        self.comments(story).find(|comment| comment.id == id)
    }

    fn thread(&self, story: i64, belongs: impl Fn(&Comment) -> bool) -> Rows {
        let row = |Comment { id, writer, parent, replies, .. }: Comment| {
            vec![id.into(), writer.into(), story.into(), parent.into(), replies.into()]
        };
        Rows::returned(self.comments(story).filter(belongs).map(row).collect())
    }

    fn old_subjects(&self, pattern: &str, offset: i64) -> Rows {
        let stories = self.loaded.population.scale().old_stories();
        let found = stories * (super::population::COMMENTS_MIN + Population::COMMENTS_MAX) / 2;
        let found = found / SUBJECTS_FOR_A_WORD;
        let key = pattern.bytes().fold(0_u64, |key, byte| key.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let page = (offset..found.min(offset + super::PAGE_STORIES)).map(|place| {
            let random = &mut stream(key, place as u64);
            let story = uniform(random, 1, stories);
            let number = uniform(random, 1, super::population::COMMENTS_MIN);
            found_comment((story - 1) * Population::COMMENTS_MAX + number, story)
        });
        Rows::returned(page.collect())
    }
}

impl Loaded {
    fn new(population: Population) -> Loaded {
        let (old, all) = (population.scale().old_stories(), population.scale().stories());
        let mut loaded = Loaded {
            population,
            stories: Vec::new(),
            by_writer: HashMap::new(),
            by_word: HashMap::new(),
            comments_by_word: HashMap::new(),
        };
        for id in 1..=all {
            let story = population.story(id);
            loaded.stories.push((story.writer, story.category));
            loaded.by_writer.entry(story.writer).or_default().push(id);
            for word in words(&story.title) {
                loaded.by_word.entry(word).or_default().push(id);
            }
        }
        for found in loaded.by_word.values_mut().chain(loaded.by_writer.values_mut()) {
            found.reverse();
        }
        for story in (old + 1..=all).rev() {
            let (comments, mut random) = population.comments(story);
            for comment in comments {
                for word in words(&Population::title(&mut random)) {
                    loaded.comments_by_word.entry(word).or_default().push((comment.id, story));
                }
            }
        }
        loaded
    }

    /// Writer and category of a story that was loaded.
    fn find(&self, story: i64) -> Option<(i64, i64)> {
        self.stories.get(usize::try_from(story - 1).ok()?).copied()
    }

    fn writer(&self, story: i64) -> i64 {
        self.find(story).map_or(0, |(writer, _)| writer)
    }

    /// Users whose names begin like this.
    fn users_named(&self, name: &str) -> impl Iterator<Item = i64> + use<> {
        let users = self.population.scale().users();
        let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        let first: i64 = digits.parse().unwrap_or(0);
        let lengths = std::iter::successors(Some(1_i64), |length| length.checked_mul(10));
        let ranges = lengths.map(move |length| (first.saturating_mul(length), length));
        let ranges = ranges.take_while(move |(from, _)| *from > 0 && *from <= users);
        ranges.flat_map(move |(from, length)| from..(from + length).min(users + 1))
    }
}

/// The words of a title, each once.
fn words(title: &str) -> std::collections::BTreeSet<String> {
    title.split(' ').map(str::to_owned).collect()
}

fn offset(rows: i64) -> usize {
    usize::try_from(rows).unwrap_or(0)
}

/// A row with an id first and a writer in this column.
fn row(id: i64, writer: i64, column: usize) -> Vec<Value> {
    let mut row = vec![Value::Null; column + 1];
    (row[0], row[column]) = (id.into(), writer.into());
    row
}

fn rows(found: impl Iterator<Item = (i64, i64)>, column: usize) -> Rows {
    Rows::returned(found.map(|(id, writer)| row(id, writer, column)).collect())
}

/// A row of a search for comments, with its story.
fn found_comment(id: i64, story: i64) -> Vec<Value> {
    vec![id.into(), story.into(), Value::Null, Value::Int(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulletin_board::Scale;
    use crate::value::Date;

    fn memory() -> Memory {
        let scale = Scale::new(40, 100).unwrap();
        Memory::new(Population::new(scale, 2, Date::from_calendar(2003, 3, 26).into()))
    }

    fn ask(memory: &mut Memory, statement: &str, params: &[Value]) -> Vec<Vec<Value>> {
        memory.answer(catalogue().statement_id(statement).unwrap(), params).rows
    }

    fn ints(params: &[i64]) -> Vec<Value> {
        params.iter().map(|int| Value::Int(*int)).collect()
    }

    #[test]
    fn threads_are_those_that_would_be_loaded() {
        let mut memory = memory();
        // Story 3 is old, 700 is new.
        for (story, top, replies) in
            [(3, "view_story.oldtop", "view_story.oldreplies"), (700, "view_story.top", "view_story.replies")]
        {
            let mut open = ask(&mut memory, top, &ints(&[story, -1]));
            let mut seen = 0;
            while let Some(comment) = open.pop() {
                seen += 1;
                let answers = ask(&mut memory, replies, &[comment[0].clone()]);
                assert_eq!(Value::Int(answers.len() as i64), comment[4]);
                open.extend(answers);
            }
            assert_eq!(seen, memory.loaded.population.comments(story).0.len());
        }
    }

    #[test]
    fn what_was_written_is_seen_afterwards() {
        let mut memory = memory();
        let first = ask(&mut memory, "view_story.top", &ints(&[700, -1]))[0].clone();
        let answer = [ints(&[90_000, 5, 700]), vec![first[0].clone()]].concat();
        ask(&mut memory, "store_comment.insert", &answer);
        ask(&mut memory, "store_comment.parent", &[first[0].clone()]);
        let again = ask(&mut memory, "view_story.top", &ints(&[700, -1]))[0].clone();
        assert_eq!(again[4].as_int(), first[4].as_int().map(|replies| replies + 1));
        let replies = ask(&mut memory, "view_story.replies", &[first[0].clone()]);
        assert_eq!(replies.last().unwrap()[0], Value::Int(90_000));

        ask(&mut memory, "store_moderation.rate", &ints(&[90_000, 4]));
        assert_eq!(ask(&mut memory, "store_moderation.comment", &ints(&[90_000])), [ints(&[5, 4])]);

        assert_eq!(ask(&mut memory, "accept_story.get", &ints(&[20])).len(), 1);
        ask(&mut memory, "accept_story.publish", &ints(&[2_000, 0, 0, 0, 30, 8]));
        ask(&mut memory, "accept_story.drop", &ints(&[20]));
        assert_eq!(ask(&mut memory, "accept_story.get", &ints(&[20])).len(), 0);
        let latest = ask(&mut memory, "sod.list", &[]);
        assert_eq!(
            (latest.len(), latest[0][0].clone(), latest[1][0].clone()),
            (10, Value::Int(2_000), Value::Int(800))
        );
        assert_eq!(ask(&mut memory, "view_story.story", &ints(&[2_000]))[0][4], Value::Int(30));
    }

    #[test]
    fn stories_are_found_by_day_by_word_and_by_writer() {
        let mut memory = memory();
        let opened: Timestamp = Date::from_calendar(2003, 3, 26).into();
        let day = |ago: i64| [opened.plus_days(-ago).into(), opened.plus_days(1 - ago).into(), Value::Int(0)];
        for (ago, new, old) in [(2, 20, 0), (35, 0, 20)] {
            assert_eq!(ask(&mut memory, "older_stories.new", &day(ago)).len(), new, "{ago} days ago");
            assert_eq!(ask(&mut memory, "older_stories.old", &day(ago)).len(), old, "{ago} days ago");
        }
        let story = memory.loaded.population.story(700);
        let word = format!("%{}%", story.title.split(' ').next().unwrap());
        let found = ask(&mut memory, "search_stories.new", &[word.into(), Value::Int(0)]);
        assert!(found.iter().any(|row| row[0] == Value::Int(700) && row[3] == Value::Int(story.writer)));
        let name = format!("user{}%", story.writer);
        let found = ask(&mut memory, "search_users.new", &[name.into(), Value::Int(0)]);
        assert!(found.iter().any(|row| row[0] == Value::Int(700)), "{found:?}");
        assert_eq!(
            memory.loaded.users_named("user9").collect::<Vec<_>>(),
            [vec![9], (90..100).collect()].concat()
        );
    }

    #[test]
    fn about_as_many_old_comments_are_found_as_there_are() {
        let mut memory = memory();
        // 200 old stories with 35 comments each, and a word in one of 830 subjects.
        let found = ask(&mut memory, "search_comments.old", &["%word%".into(), Value::Int(0)]);
        assert_eq!(found.len(), 8);
        assert!(found.iter().all(|row| memory.is_old(row[1].as_int().unwrap())));
    }
}
