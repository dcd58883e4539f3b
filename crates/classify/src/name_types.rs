//! `regclass` and kin: types whose values are OIDs, which differ between servers, and are shown as names.

/// Built-in types whose values are OIDs that are shown as names: the OID of the type, that of its arrays, and how SQL writes
/// both.
const NAME_TYPES: [(u32, u32, &str, &str); 11] = [
    (24, 1008, "regproc", "regproc[]"),
    (2202, 2207, "regprocedure", "regprocedure[]"),
    (2203, 2208, "regoper", "regoper[]"),
    (2204, 2209, "regoperator", "regoperator[]"),
    (2205, 2210, "regclass", "regclass[]"),
    (2206, 2211, "regtype", "regtype[]"),
    (3734, 3735, "regconfig", "regconfig[]"),
    (3769, 3770, "regdictionary", "regdictionary[]"),
    (4089, 4090, "regnamespace", "regnamespace[]"),
    (4096, 4097, "regrole", "regrole[]"),
    (4191, 4192, "regcollation", "regcollation[]"),
];

/// The name of a built-in type whose values are OIDs that are shown as names, or an array of such, as SQL writes it.
#[must_use]
pub fn name_type(oid: u32) -> Option<&'static str> {
    NAME_TYPES.iter().find_map(|(of, of_array, name, array)| match oid {
        _ if oid == *of => Some(*name),
        _ if oid == *of_array => Some(*array),
        _ => None,
    })
}

/// Whether `pg_catalog` has such a type of a name, which may be that of an array (`_regclass`).
pub(crate) fn names_name_type(name: &str) -> bool {
    let element = name.strip_prefix('_').unwrap_or(name);
    NAME_TYPES.iter().any(|(_, _, known, _)| *known == element)
}

/// The OIDs of such types, with commas between them.
pub(crate) fn name_type_oids() -> String {
    NAME_TYPES.map(|(oid, ..)| oid.to_string()).join(", ")
}

/// Whether text that is read as the name of an object, or as several, may hold a number in the place of one: as 16384 does,
/// and `{16384,child}`.
pub(crate) fn has_number(text: &str) -> bool {
    let text = text.replace(['\\', '"'], "");
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii();
    let mut words = text.split(|c: char| !is_name(c));
    words.any(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a value of a type, as a server shows it, is an OID (or holds one) since there is no object of that number: of `regclass`
/// and kin and arrays of them. Of another type it cannot be told.
#[must_use]
pub fn shows_number(type_name: &str, text: &str) -> bool {
    let element = type_name.trim_end_matches("[]");
    if !NAME_TYPES.iter().any(|(_, _, known, _)| *known == element) {
        return false;
    }
    // What begins with a digit and is a name stands in quotes.
    let mut outside = String::with_capacity(text.len());
    let (mut quoted, mut chars) = (false, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => quoted = !quoted,
            _ => {}
        }
        outside.push(if quoted || c == '"' { '_' } else { c });
    }
    let mut words = outside.split(['{', '}', ',']);
    words.any(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_are_not_there_are_shown_as_numbers() {
        for (type_name, text, found) in [
            ("regclass", "16384", true),
            ("regclass", "\"16384\"", false),
            ("regclass", "public.\"2020\"", false),
            ("regclass", "-", false),
            ("regclass[]", "{child,16384}", true),
            ("regclass[]", "{child,\"\\\"16384\\\"\",NULL}", false),
            ("regprocedure", "f(integer)", false),
            ("text", "16384", false),
        ] {
            assert_eq!(shows_number(type_name, text), found, "{type_name} {text}");
        }
    }

    #[test]
    fn numbers_are_told_from_names() {
        for (text, found) in [
            ("16384", true),
            (" 16384 ", true),
            ("{child,16384}", true),
            ("{\"163\\84\"}", true),
            ("(child,16384)", true),
            ("child", false),
            ("public.child_2", false),
            ("f(int4)", false),
            ("-", false),
            ("t2$3", false),
        ] {
            assert_eq!(has_number(text), found, "{text}");
        }
    }
}
