//! The bulletin board (RUBBoS): 24 pages, 53 statements (13 of them once more for old stories), a population of any scale
//! and emulated visitors.
//!
//! * [`catalogue`] and its plan: tables, pages and statements, from `data/bulletin_board.toml`.
//! * [`Mix`]: how visitors walk.
//! * [`Scale`] and [`Population`]: how large the board is, and its rows.
//! * [`BulletinBoard`]: the board as its visitors know it; [`Memory`] answers them where there is no database.
//! * [`checks`]: what must hold in the database after any run.

mod checks;
mod memory;
mod population;

pub use checks::checks;
pub use memory::Memory;
pub use population::{Population, Scale, ScaleError};

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::catalogue::{Catalogue, InteractionId};
use crate::random::{Random, chance, text, uniform};
use crate::site::{self, Ids, Plan, Site, Transitions, Vars, Visitor};
use crate::value::Timestamp;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../../data/bulletin_board.toml"))
        .expect("data/bulletin_board.toml is in order")
});

static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    Plan::parse(&CATALOGUE, VARIABLES).expect("data/bulletin_board.toml says what its pages do")
});

static TRANSITIONS: LazyLock<[Transitions; 3]> = LazyLock::new(|| {
    Walker::ALL.map(|walker| {
        let csv = include_str!("../../data/bulletin_board_transitions.csv");
        let start = catalogue().interactions.iter().position(|page| page.id == "STORIES_OF_THE_DAY");
        let start = InteractionId(start.expect("the board has stories of the day") as u16);
        Transitions::parse(csv, walker.as_str(), &CATALOGUE, start)
            .expect("data/bulletin_board_transitions.csv is in order")
    })
});

/// What a visitor knows and chooses.
const VARIABLES: &[&str] = &[
    "user",
    "nickname",
    "password",
    "now",
    "category",
    "offset",
    "story",
    "is_old",
    "comment",
    "submission",
    "threshold",
    "period_begin",
    "period_end",
    "pattern",
    "name_pattern",
    "title",
    "body",
    "text",
    "step",
    "new_user",
    "new_nickname",
    "new_password",
    "email",
    "new_comment",
    "new_story",
    "new_submission",
    "new_moderation",
];

/// The share of sessions that are authors'.
const AUTHOR_PROBABILITY: f64 = 0.1;
/// Stories on one page of a list.
const PAGE_STORIES: i64 = 20;
/// Ratings of comments.
const RATING_MIN: i64 = -1;
const RATING_MAX: i64 = 5;

/// The tables, pages and statements.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

/// How visitors walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mix {
    /// A tenth of the sessions are authors': 15.1 % of the interactions that reach the database write (DV says 15 %).
    #[default]
    Default,
    /// Nobody writes.
    BrowseOnly,
}

impl Mix {
    /// Both.
    pub const ALL: [Mix; 2] = [Mix::Default, Mix::BrowseOnly];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Mix::Default => "default",
            Mix::BrowseOnly => "browse_only",
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No mix has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no mix {0:?}: choose default or browse_only")]
pub struct UnknownMix(String);

impl FromStr for Mix {
    type Err = UnknownMix;

    fn from_str(name: &str) -> Result<Self, UnknownMix> {
        Self::ALL.into_iter().find(|mix| mix.as_str() == name).ok_or_else(|| UnknownMix(name.to_owned()))
    }
}

/// Who walks: a column of the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walker {
    User,
    Author,
    Reader,
}

impl Walker {
    const ALL: [Walker; 3] = [Walker::User, Walker::Author, Walker::Reader];

    fn as_str(self) -> &'static str {
        match self {
            Walker::User => "user",
            Walker::Author => "author",
            Walker::Reader => "browse_only",
        }
    }

    fn transitions(self) -> &'static Transitions {
        &TRANSITIONS[self as usize]
    }
}

/// The bulletin board as its visitors know it.
#[derive(Clone, Copy, Debug)]
pub struct BulletinBoard {
    /// How visitors walk.
    pub mix: Mix,
    /// How large it is.
    pub scale: Scale,
}

/// Tables whose new rows get ids from visitors; the places in this list are those below.
const ID_TABLES: &[&str] = &["users", "stories", "submissions", "comments", "moderator_log"];
const USERS: usize = 0;
const STORIES: usize = 1;
const SUBMISSIONS: usize = 2;
const COMMENTS: usize = 3;
const MODERATIONS: usize = 4;

impl BulletinBoard {
    /// An emulated visitor: `number` of `visitors`. `highest` are the ids in use, by [`Site::id_tables`].
    pub fn visitor(self, seed: u64, number: u32, visitors: u32, highest: &[i64]) -> Visitor<BulletinBoard> {
        Visitor::new(self, seed, number, visitors, highest)
    }

    /// The highest ids of a freshly loaded board, by [`Site::id_tables`].
    pub fn loaded(&self) -> Vec<i64> {
        let scale = self.scale;
        let comments = scale.stories() * Population::COMMENTS_MAX;
        vec![scale.users(), scale.stories(), Population::SUBMISSIONS, comments, 0]
    }
}

impl Site for BulletinBoard {
    fn catalogue(&self) -> &'static Catalogue {
        catalogue()
    }

    fn plan(&self) -> &'static Plan {
        &PLAN
    }

    fn variables(&self) -> &'static [&'static str] {
        VARIABLES
    }

    fn id_tables(&self) -> &'static [&'static str] {
        ID_TABLES
    }

    fn begin(&self, vars: &mut Vars, random: &mut Random) -> &'static Transitions {
        let walker = match self.mix {
            Mix::BrowseOnly => Walker::Reader,
            Mix::Default if chance(random, AUTHOR_PROBABILITY) => Walker::Author,
            Mix::Default => Walker::User,
        };
        let user = self.scale.draw_user(walker == Walker::Author, random);
        vars.set("user", user);
        vars.set("nickname", site::nickname(user));
        vars.set("password", site::password(user));
        vars.set("category", uniform(random, 1, Population::CATEGORIES));
        vars.set("story", uniform(random, 1, self.scale.stories()));
        vars.set("comment", 0);
        vars.set("submission", 0);
        vars.set("offset", 0);
        vars.set("threshold", RATING_MIN);
        walker.transitions()
    }

    fn choose(
        &self,
        page: InteractionId,
        came_from: Option<InteractionId>,
        vars: &mut Vars,
        ids: &mut Ids,
        random: &mut Random,
        now: Timestamp,
    ) {
        vars.set("now", now);
        let is_old = vars.int("story").is_some_and(|story| story <= self.scale.old_stories());
        vars.set("is_old", i64::from(is_old));
        let is_again = came_from == Some(page);
        let name = catalogue().interaction(page).id.as_str();
        match name {
            "BROWSE_STORIES_CATEGORY"
            | "OLDER_STORIES"
            | "SEARCH_STORIES"
            | "SEARCH_COMMENTS"
            | "SEARCH_USERS" => {
                // Whoever asks again wants the next page.
                let next = is_again.then(|| vars.int("offset").unwrap_or(0) + PAGE_STORIES);
                vars.set("offset", next.unwrap_or(0));
            }
            _ => {}
        }
        match name {
            "OLDER_STORIES" if !is_again => {
                let days_ago = uniform(random, 1, self.scale.days());
                vars.set("period_begin", now.plus_days(-days_ago));
                vars.set("period_end", now.plus_days(1 - days_ago));
            }
            "SEARCH_STORIES" | "SEARCH_COMMENTS" if !is_again => {
                vars.set("pattern", format!("%{}%", Population::word(random)));
            }
            "SEARCH_USERS" if !is_again => {
                let user = uniform(random, 1, self.scale.users());
                vars.set("name_pattern", format!("{}%", site::nickname(user)));
            }
            "VIEW_STORY" | "VIEW_COMMENT" => {
                vars.set("threshold", uniform(random, RATING_MIN, RATING_MAX));
                if name == "VIEW_STORY" {
                    vars.set("comment", 0);
                }
            }
            "REGISTER_USER" => {
                let user = ids.take(USERS);
                vars.set("new_user", user);
                vars.set("new_nickname", site::nickname(user));
                vars.set("new_password", site::password(user));
                vars.set("email", Population::email(user));
                vars.set("text", text(random, 3, 20));
            }
            "STORE_COMMENT" => {
                vars.set("new_comment", ids.take(COMMENTS));
                vars.set("title", Population::title(random));
                vars.set("body", Population::comment(random));
            }
            "STORE_MODERATION" => {
                vars.set("new_moderation", ids.take(MODERATIONS));
                vars.set("step", uniform(random, -1, 1));
            }
            "STORE_STORY" => {
                vars.set("new_submission", ids.take(SUBMISSIONS));
                vars.set("new_story", ids.take(STORIES));
                vars.set("title", Population::title(random));
                vars.set("body", Population::body(random));
            }
            "ACCEPT_STORY" => vars.set("new_story", ids.take(STORIES)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;
    use crate::site::tests::{expect_every_statement_and_one_course, published_shares, write_share};

    /// Of many sessions of a mix.
    fn shares(mix: Mix) -> Vec<f64> {
        match mix {
            Mix::BrowseOnly => Walker::Reader.transitions().shares(2_000_000, &mut stream(1, 0)),
            Mix::Default => {
                let site = BulletinBoard { mix, scale: Scale::new(10, 100).unwrap() };
                let mut random = stream(1, 0);
                let mut counts = vec![0.0; catalogue().interactions.len()];
                let mut vars = crate::site::tests::vars(VARIABLES);
                for _ in 0..40_000 {
                    let transitions = site.begin(&mut vars, &mut random);
                    let mut walk = transitions.begin();
                    loop {
                        counts[usize::from(walk.at.0)] += 1.0;
                        if !transitions.go_on(&mut walk, &mut random) {
                            break;
                        }
                    }
                }
                let all: f64 = counts.iter().sum();
                counts.into_iter().map(|count| count / all).collect()
            }
        }
    }

    #[test]
    fn shares_of_pages_are_the_published_ones() {
        for mix in Mix::ALL {
            let csv = include_str!("../../data/bulletin_board_shares.csv");
            let published = published_shares(csv, mix.as_str(), catalogue());
            for ((interaction, ours), theirs) in
                catalogue().interactions.iter().zip(shares(mix)).zip(published)
            {
                let difference = ours * 100.0 - theirs;
                assert!(difference.abs() < 0.25, "{mix:?} {}: {difference:+.3}", interaction.id);
            }
        }
    }

    #[test]
    fn fifteen_percent_of_what_reaches_the_database_writes() {
        let share = write_share(catalogue(), &shares(Mix::Default));
        assert!((share - 0.151).abs() < 0.003, "{share}");
        assert!(write_share(catalogue(), &shares(Mix::BrowseOnly)) < 1e-9);
    }

    #[test]
    fn every_statement_is_one_by_itself_and_13_have_another_for_old_stories() {
        assert_eq!(catalogue().interactions.len(), 24);
        assert!(catalogue().transactions.iter().all(|transaction| !transaction.kind.is_bracketed()));
        let old = catalogue().statements.iter().filter(|statement| statement.id.contains(".old")).count();
        // view_story.old, older_stories.old and those of searches are for the other table by themselves.
        assert_eq!((catalogue().statements.len() - 13, old), (53, 18));
    }

    #[test]
    fn every_statement_runs_and_the_same_seed_gives_the_same_course() {
        let site = BulletinBoard { mix: Mix::Default, scale: Scale::new(60, 100).unwrap() };
        expect_every_statement_and_one_course(catalogue(), || site.visitor(7, 0, 1, &site.loaded()), 25_000);
    }
}
