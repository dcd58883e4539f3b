//! Which interaction follows which: the three mixes, as transition matrices.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::catalogue::{Class, InteractionId};
use crate::random::{Random, uniform};

/// The fourteen interactions, in the order of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interaction {
    /// HOME
    Home,
    /// NEWP
    NewProducts,
    /// BESS
    BestSellers,
    /// PROD
    ProductDetail,
    /// SREQ
    SearchRequest,
    /// SRES
    SearchResults,
    /// SHOP
    ShoppingCart,
    /// CREG
    CustomerRegistration,
    /// BUYR
    BuyRequest,
    /// BUYC
    BuyConfirm,
    /// ORDI
    OrderInquiry,
    /// ORDD
    OrderDisplay,
    /// ADMR
    AdminRequest,
    /// ADMC
    AdminConfirm,
}

impl Interaction {
    /// All of them, in the order of the catalogue.
    pub const ALL: [Interaction; 14] = [
        Interaction::Home,
        Interaction::NewProducts,
        Interaction::BestSellers,
        Interaction::ProductDetail,
        Interaction::SearchRequest,
        Interaction::SearchResults,
        Interaction::ShoppingCart,
        Interaction::CustomerRegistration,
        Interaction::BuyRequest,
        Interaction::BuyConfirm,
        Interaction::OrderInquiry,
        Interaction::OrderDisplay,
        Interaction::AdminRequest,
        Interaction::AdminConfirm,
    ];

    /// The benchmark's name of four letters.
    pub fn id(self) -> &'static str {
        &super::catalogue().interaction(self.into()).id
    }

    /// The name in words.
    pub fn name(self) -> &'static str {
        &super::catalogue().interaction(self.into()).name
    }

    /// Browsing or ordering.
    pub fn class(self) -> Class {
        super::catalogue().interaction(self.into()).class
    }

    /// The interaction with this name of four letters.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|interaction| interaction.id() == id)
    }
}

impl From<Interaction> for InteractionId {
    fn from(interaction: Interaction) -> Self {
        InteractionId(interaction as u16)
    }
}

impl fmt::Display for Interaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// The three mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MixName {
    /// 5 % ordering.
    Browsing,
    /// 20 % ordering; the main one.
    Shopping,
    /// 50 % ordering.
    Ordering,
}

impl MixName {
    /// All three.
    pub const ALL: [MixName; 3] = [MixName::Browsing, MixName::Shopping, MixName::Ordering];

    /// The name in small letters.
    pub fn as_str(self) -> &'static str {
        match self {
            MixName::Browsing => "browsing",
            MixName::Shopping => "shopping",
            MixName::Ordering => "ordering",
        }
    }

    /// The benchmark's name for interactions per second under this mix.
    pub fn metric(self) -> &'static str {
        match self {
            MixName::Browsing => "WIPSb",
            MixName::Shopping => "WIPS",
            MixName::Ordering => "WIPSo",
        }
    }
}

impl fmt::Display for MixName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No mix has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no mix {0:?}: choose browsing, shopping or ordering")]
pub struct UnknownMix(String);

impl FromStr for MixName {
    type Err = UnknownMix;

    fn from_str(name: &str) -> Result<Self, UnknownMix> {
        Self::ALL.into_iter().find(|mix| mix.as_str() == name).ok_or_else(|| UnknownMix(name.to_owned()))
    }
}

/// A mix's transition matrix.
#[derive(Clone, Debug)]
pub struct Mix {
    name: MixName,
    /// For each interaction, what may follow, with the threshold up to which a draw of 1..=9999 means it; increasing.
    rows: [Vec<(Interaction, i64)>; 14],
}

/// The highest draw, at which every row ends.
const DRAW_MAX: i64 = 9_999;

static MATRICES: LazyLock<[Mix; 3]> = LazyLock::new(|| {
    MixName::ALL.map(|name| {
        let csv = match name {
            MixName::Browsing => include_str!("../../data/tpcw_mix_browsing.csv"),
            MixName::Shopping => include_str!("../../data/tpcw_mix_shopping.csv"),
            MixName::Ordering => include_str!("../../data/tpcw_mix_ordering.csv"),
        };
        Mix::parse(name, csv).unwrap_or_else(|| panic!("data/tpcw_mix_{name}.csv is in order"))
    })
});

impl Mix {
    /// The matrix of a mix.
    pub fn of(name: MixName) -> &'static Mix {
        &MATRICES[name as usize]
    }

    /// Which mix this is.
    pub fn name(&self) -> MixName {
        self.name
    }

    /// Draws what follows.
    pub fn next(&self, from: Interaction, random: &mut Random) -> Interaction {
        let draw = uniform(random, 1, DRAW_MAX);
        let row = &self.rows[from as usize];
        row.iter().find(|(_, threshold)| *threshold >= draw).map_or(Interaction::Home, |(next, _)| *next)
    }

    /// The probability that `to` follows `from`.
    pub fn probability(&self, from: Interaction, to: Interaction) -> f64 {
        let mut below = 0;
        for (next, threshold) in &self.rows[from as usize] {
            if *next == to {
                return (threshold - below) as f64 / DRAW_MAX as f64;
            }
            below = *threshold;
        }
        0.0
    }

    /// The share of each interaction in the long run, in the order of [`Interaction::ALL`]: the matrix's stationary
    /// distribution.
    pub fn stationary(&self) -> [f64; 14] {
        let mut shares = [1.0 / 14.0; 14];
        // The chains mix within tens of steps; a thousand leave no trace of the start.
        for _ in 0..1_000 {
            let mut next = [0.0; 14];
            for from in Interaction::ALL {
                for to in Interaction::ALL {
                    next[to as usize] += shares[from as usize] * self.probability(from, to);
                }
            }
            shares = next;
        }
        shares
    }

    /// Reads a matrix: a header that names the columns, then one row an interaction; 0 stands for no transition.
    fn parse(name: MixName, csv: &str) -> Option<Self> {
        let mut lines = csv.lines();
        let columns: Option<Vec<Interaction>> =
            lines.next()?.split(',').skip(1).map(Interaction::from_id).collect();
        let columns = columns?;
        let mut rows: [Vec<(Interaction, i64)>; 14] = Default::default();
        for line in lines {
            let (from, thresholds) = line.split_once(',')?;
            let row = &mut rows[Interaction::from_id(from)? as usize];
            for (next, threshold) in columns.iter().zip(thresholds.split(',')) {
                let threshold: i64 = threshold.trim().parse().ok()?;
                if threshold > 0 {
                    row.push((*next, threshold));
                }
            }
        }
        let is_whole = |row: &Vec<(Interaction, i64)>| {
            row.is_sorted_by(|a, b| a.1 < b.1) && row.last().is_some_and(|last| last.1 == DRAW_MAX)
        };
        rows.iter().all(is_whole).then_some(Mix { name, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    /// The shares that the specification publishes, in percent.
    fn published(mix: MixName) -> [f64; 14] {
        let mut shares = [f64::NAN; 14];
        for line in include_str!("../../data/tpcw_shares.csv").lines().skip(1) {
            let [name, interaction, percent] = line.split(',').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            if name == mix.as_str() {
                shares[Interaction::from_id(interaction).unwrap() as usize] = percent.parse().unwrap();
            }
        }
        shares
    }

    #[test]
    fn stationary_shares_are_the_published_ones() {
        for name in MixName::ALL {
            let computed = Mix::of(name).stationary();
            let published = published(name);
            assert!((published.iter().sum::<f64>() - 100.0).abs() < 1e-9);
            assert!((computed.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            for interaction in Interaction::ALL {
                let (ours, theirs) =
                    (computed[interaction as usize] * 100.0, published[interaction as usize]);
                // Two digits are published; 9,999 steps of a draw cannot do better than this either.
                assert!((ours - theirs).abs() < 0.006, "{name} {interaction}: {ours:.4} against {theirs}");
            }
        }
    }

    #[test]
    fn orders_are_5_20_and_50_percent() {
        for (name, expected) in
            [(MixName::Browsing, 0.05), (MixName::Shopping, 0.2), (MixName::Ordering, 0.5)]
        {
            let shares = Mix::of(name).stationary();
            let orders = Interaction::ALL.iter().filter(|each| each.class() == Class::Order);
            let share: f64 = orders.map(|each| shares[*each as usize]).sum();
            assert!((share - expected).abs() < 0.0001, "{name}: {share}");
        }
    }

    #[test]
    fn draws_follow_the_matrix() {
        let mix = Mix::of(MixName::Shopping);
        let mut random = stream(1, 0);
        let mut counts = [0_u32; 14];
        let mut at = Interaction::Home;
        const STEPS: u32 = 300_000;
        for _ in 0..STEPS {
            at = mix.next(at, &mut random);
            counts[at as usize] += 1;
        }
        for (share, count) in mix.stationary().iter().zip(counts) {
            let measured = f64::from(count) / f64::from(STEPS);
            assert!((share - measured).abs() < 0.004, "{share} {measured}");
        }
    }

    #[test]
    fn interactions_stand_in_the_order_of_the_catalogue() {
        let ids: Vec<&str> = Interaction::ALL.iter().map(|each| each.id()).collect();
        let expected = "HOME NEWP BESS PROD SREQ SRES SHOP CREG BUYR BUYC ORDI ORDD ADMR ADMC";
        assert_eq!(ids.join(" "), expected);
        assert_eq!(super::super::catalogue().interactions.len(), 14);
        assert_eq!("shopping".parse::<MixName>().unwrap(), MixName::Shopping);
        assert!("buying".parse::<MixName>().unwrap_err().to_string().contains("choose browsing"));
    }
}
