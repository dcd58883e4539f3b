//! SQL text to access set, determinism, class and rewrite. The only crate that parses SQL.
//!
//! A statement goes this way: [`normalise`] replaces its constants by placeholders (a microsecond); a [`ClassCache`]
//! finds the [`Class`] of that text, or [`classify`] makes it by one parse; [`Class::bind`] fills in the
//! constants and parameters and yields the items that the statement touches. No I/O anywhere: the
//! [`Catalogue`] comes in as data.
//!
//! ```
//! use onecopy_classify::{Catalogue, ClassCache, Context, NoParams, Scratch, context_key, normalise};
//!
//! let catalogue = Catalogue::default();
//! let path = ["public".to_owned()];
//! let context = Context { catalogue: &catalogue, search_path: &path, temporary: &[] };
//! let key = context_key(&context);
//! let (mut scratch, mut cache) = (Scratch::default(), ClassCache::new(1000));
//!
//! let sql = "SELECT 1";
//! let normalised = normalise(sql, &mut scratch);
//! let (class, _) = cache.get(sql, &normalised, &context, key);
//! let items = class.bind(sql, normalised.layout, &NoParams, &[]);
//! assert!(items.is_empty());
//! ```

mod analyse;
mod ast;
pub mod bulk;
pub mod cache;
pub mod capture;
pub mod catalogue;
pub mod catalogue_queries;
pub mod class;
pub mod copied;
pub mod explain;
mod functions;
mod grammar;
pub mod lexer;
pub mod moment_text;
pub mod name_types;
pub mod parameterise;
pub mod prepared;
pub mod references;
pub mod rewrite;
pub mod session_calls;
mod template;
pub mod value;
pub mod whole;

pub use analyse::{Context, classify};
pub use ast::{Discard, Isolation, LockStrength, LockWait, Modes};
pub use bulk::BulkText;
pub use cache::{ClassCache, context_key};
pub use capture::{CaptureColumn, CaptureOp, CapturePlan, CapturedSql, captured_sql};
pub use catalogue::{Capturing, Catalogue, CatalogueError, key_id, table_id};
pub use class::{
    Bulk, Class, Determinism, Effects, ExecuteArgument, Guard, Kind, NumberPlan, Numbered, Numbering,
    Rechecks, Refusal,
};
pub use copied::{CopiedMoments, MomentSearch};
pub use explain::{Explanation, explain};
pub use functions::ENVIRONMENT_SETTINGS;
pub use lexer::{Const, ConstKind, Layout, Normalised, OwnedLayout, Position, Scratch, normalise};
pub use parameterise::{Parameterised, ReplayParam};
pub use rewrite::{Frozen, FrozenKind, FrozenValue, Piece, Rewrite, Splice};
pub use session_calls::{Argument, CallRows, SessionCall, SessionFunction};
pub use template::NotCanonical;
pub use value::{NoParams, ParamValue, Params, is_named_by_values, oid};
