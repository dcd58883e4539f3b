//! Statements of a catalogue as an enum of their names, so that code and data cannot part unnoticed.

/// An enum of a catalogue's statements, in its order; that they are the same is a test's matter.
macro_rules! statements {
    ($($variant:ident = $id:literal,)*) => {
        /// A statement of the catalogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Statement {
            $(#[doc = concat!("`", $id, "`")] $variant,)*
        }

        impl Statement {
            /// All of them, in the order of the catalogue.
            pub const ALL: &[Statement] = &[$(Statement::$variant,)*];

            /// The name in the catalogue.
            pub fn id(self) -> &'static str {
                match self {
                    $(Statement::$variant => $id,)*
                }
            }

            /// The statement with this id, if it is one of this catalogue.
            pub fn from_id(id: $crate::StatementId) -> Option<Self> {
                Self::ALL.get(usize::from(id.0)).copied()
            }
        }

        impl From<Statement> for $crate::StatementId {
            fn from(statement: Statement) -> Self {
                $crate::StatementId(statement as u16)
            }
        }
    };
}

pub(crate) use statements;
