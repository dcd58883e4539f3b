//! The roles of a server as statements that make another server's like them: they belong to no database, and no dump of one
//! has them.

use std::collections::BTreeSet;

use crate::agent::{quote, quote_identifier};
use crate::lane::{Lane, LaneError};

/// Settings whose values are lists of names, each of which is written by itself.
const LISTS: [&str; 6] = [
    "local_preload_libraries",
    "search_path",
    "session_preload_libraries",
    "shared_preload_libraries",
    "temp_tablespaces",
    "unix_socket_directories",
];

/// One role.
struct Role {
    name: String,
    /// As ALTER ROLE takes them.
    attributes: String,
    password: Option<String>,
    valid_until: Option<String>,
    comment: Option<String>,
}

/// All roles but the server's own, with what belongs to them wherever they connect to.
pub struct Roles {
    roles: Vec<Role>,
    /// Statements that grant memberships.
    grants: Vec<String>,
    /// Whose settings (`None`: all roles'), and each as name=value.
    settings: Vec<(Option<String>, String)>,
}

/// Reads them, in the lane's open transaction.
pub async fn read(lane: &mut Lane) -> Result<Roles, LaneError> {
    lane.command("SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'").await?;
    let flag = |column: &str, word: &str| format!("CASE WHEN r.{column} THEN '{word} ' ELSE 'NO{word} ' END");
    let flags = [
        ("rolsuper", "SUPERUSER"),
        ("rolinherit", "INHERIT"),
        ("rolcreaterole", "CREATEROLE"),
        ("rolcreatedb", "CREATEDB"),
        ("rolcanlogin", "LOGIN"),
        ("rolreplication", "REPLICATION"),
        ("rolbypassrls", "BYPASSRLS"),
    ];
    let flags: Vec<String> = flags.iter().map(|(column, word)| flag(column, word)).collect();
    let roles = lane
        .query(&format!(
            "SELECT r.rolname, {} || 'CONNECTION LIMIT ' || r.rolconnlimit, r.rolpassword, r.rolvaliduntil, \
             pg_catalog.shobj_description(r.oid, 'pg_authid') FROM pg_catalog.pg_authid r \
             WHERE r.rolname !~ '^pg_' ORDER BY r.oid",
            flags.join(" || ")
        ))
        .await?;
    let role = |row: Vec<Option<String>>| {
        let mut row = row.into_iter();
        Some(Role {
            name: row.next().flatten()?,
            attributes: row.next().flatten()?,
            password: row.next().flatten(),
            valid_until: row.next().flatten(),
            comment: row.next().flatten(),
        })
    };
    // Whether members inherit, and may become the other role, is said by each membership since version 16.
    let grants = lane
        .query(
            "SELECT pg_catalog.format('GRANT %I TO %I', g.rolname, m.rolname) || \
             CASE WHEN o.options ? 'set_option' THEN pg_catalog.format(' WITH ADMIN %s, INHERIT %s, SET %s', \
             o.options ->> 'admin_option', o.options ->> 'inherit_option', o.options ->> 'set_option') \
             WHEN a.admin_option THEN ' WITH ADMIN OPTION' ELSE '' END \
             FROM pg_catalog.pg_auth_members a JOIN pg_catalog.pg_roles g ON g.oid = a.roleid \
             JOIN pg_catalog.pg_roles m ON m.oid = a.member CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(a) AS options) o \
             WHERE m.rolname !~ '^pg_' ORDER BY 1",
        )
        .await?;
    let settings = lane
        .query(
            "SELECT r.rolname, pg_catalog.unnest(s.setconfig) FROM pg_catalog.pg_db_role_setting s \
             LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole WHERE s.setdatabase = 0",
        )
        .await?;
    let setting = |row: Vec<Option<String>>| {
        let mut row = row.into_iter();
        let role = row.next().flatten();
        Some((role, row.next().flatten()?))
    };
    Ok(Roles {
        roles: roles.into_iter().filter_map(role).collect(),
        grants: grants.into_iter().flatten().flatten().collect(),
        settings: settings.into_iter().filter_map(setting).collect(),
    })
}

/// The names of the roles of a server.
pub async fn names(lane: &mut Lane) -> Result<BTreeSet<String>, LaneError> {
    let rows = lane.query("SELECT rolname FROM pg_catalog.pg_roles WHERE rolname !~ '^pg_'").await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// Statements that take back every membership of a server's roles.
pub async fn revocations(lane: &mut Lane) -> Result<Vec<String>, LaneError> {
    let rows = lane
        .query(
            "SELECT pg_catalog.format('REVOKE %I FROM %I', g.rolname, m.rolname) FROM pg_catalog.pg_auth_members a \
             JOIN pg_catalog.pg_roles g ON g.oid = a.roleid JOIN pg_catalog.pg_roles m ON m.oid = a.member \
             WHERE m.rolname !~ '^pg_'",
        )
        .await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

impl Roles {
    /// Those of a server that are none of these.
    pub fn beyond(&self, known: &BTreeSet<String>) -> Vec<String> {
        let is_here = |name: &String| self.roles.iter().any(|role| role.name == *name);
        known.iter().filter(|name| !is_here(name)).cloned().collect()
    }

    /// Statements after which a server with the roles `known` has these. That by which onecopy logs in, `agent`, keeps its
    /// password if it has none here.
    pub fn statements(&self, known: &BTreeSet<String>, agent: &str) -> Vec<String> {
        let mut statements = Vec::new();
        for role in &self.roles {
            let name = quote_identifier(&role.name);
            if !known.contains(&role.name) {
                statements.push(format!("CREATE ROLE {name}"));
            }
            let password = match &role.password {
                Some(password) => format!(" PASSWORD {}", quote(password)),
                None if role.name == agent => String::new(),
                None => " PASSWORD NULL".to_owned(),
            };
            let until = role.valid_until.as_ref().map(|until| format!(" VALID UNTIL {}", quote(until)));
            statements.push(format!(
                "ALTER ROLE {name} WITH {}{password}{}",
                role.attributes,
                until.unwrap_or_default()
            ));
            statements.push(format!("ALTER ROLE {name} RESET ALL"));
            let comment = role.comment.as_deref().map_or_else(|| "NULL".to_owned(), quote);
            statements.push(format!("COMMENT ON ROLE {name} IS {comment}"));
        }
        statements.push("ALTER ROLE ALL RESET ALL".to_owned());
        statements.extend(self.settings.iter().filter_map(|(role, setting)| set(role.as_deref(), setting)));
        statements.extend(self.grants.iter().cloned());
        statements
    }
}

/// Sets what a role begins with, from `name=value` as the catalogue has it.
fn set(role: Option<&str>, setting: &str) -> Option<String> {
    let (name, value) = setting.split_once('=')?;
    let role = role.map_or_else(|| "ALL".to_owned(), quote_identifier);
    let parts: Vec<String> = name.split('.').map(quote_identifier).collect();
    let value = match LISTS.contains(&name.to_ascii_lowercase().as_str()) {
        true => elements(value).iter().map(|element| quote(element)).collect::<Vec<_>>().join(", "),
        false => quote(value),
    };
    Some(format!("ALTER ROLE {role} SET {} TO {value}", parts.join(".")))
}

/// The names of a list, those in quotes without them.
fn elements(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = list.trim();
    while !rest.is_empty() {
        let mut element = String::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut chars = quoted.char_indices().peekable();
            let mut end = quoted.len();
            while let Some((at, c)) = chars.next() {
                if c == '"' && chars.next_if(|(_, next)| *next == '"').is_none() {
                    end = at + 1;
                    break;
                }
                element.push(c);
            }
            rest = &quoted[end..];
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            rest[..end].trim().clone_into(&mut element);
            rest = &rest[end..];
        }
        found.push(element);
        rest = rest.trim_start().strip_prefix(',').unwrap_or("").trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_as_they_were_set() {
        for (setting, sql) in [
            ("work_mem=1MB", "\"work_mem\" TO '1MB'"),
            (
                "search_path=\"$user\", public, \"a \"\"b\"\", c\"",
                "\"search_path\" TO '$user', 'public', 'a \"b\", c'",
            ),
            ("search_path=\"\"", "\"search_path\" TO ''"),
            ("my.name=a, b", "\"my\".\"name\" TO 'a, b'"),
            ("my.name=", "\"my\".\"name\" TO ''"),
        ] {
            assert_eq!(set(Some("ada"), setting), Some(format!("ALTER ROLE \"ada\" SET {sql}")));
        }
        assert_eq!(set(None, "a=b"), Some("ALTER ROLE ALL SET \"a\" TO 'b'".to_owned()));
    }

    #[test]
    fn roles_are_made_where_they_are_missing_and_altered_where_they_are_not() {
        let role = |name: &str, password: Option<&str>| Role {
            name: name.to_owned(),
            attributes: "LOGIN".to_owned(),
            password: password.map(str::to_owned),
            valid_until: None,
            comment: None,
        };
        let roles = Roles {
            roles: vec![role("postgres", None), role("o'x\"", Some("SCRAM$1")), role("ada", None)],
            grants: vec!["GRANT a TO b".to_owned()],
            settings: Vec::new(),
        };
        let known = BTreeSet::from(["postgres".to_owned(), "ada".to_owned(), "bob".to_owned()]);
        assert_eq!(roles.beyond(&known), ["bob"]);
        assert_eq!(
            roles.statements(&known, "postgres"),
            [
                "ALTER ROLE \"postgres\" WITH LOGIN",
                "ALTER ROLE \"postgres\" RESET ALL",
                "COMMENT ON ROLE \"postgres\" IS NULL",
                "CREATE ROLE \"o'x\"\"\"",
                "ALTER ROLE \"o'x\"\"\" WITH LOGIN PASSWORD 'SCRAM$1'",
                "ALTER ROLE \"o'x\"\"\" RESET ALL",
                "COMMENT ON ROLE \"o'x\"\"\" IS NULL",
                "ALTER ROLE \"ada\" WITH LOGIN PASSWORD NULL",
                "ALTER ROLE \"ada\" RESET ALL",
                "COMMENT ON ROLE \"ada\" IS NULL",
                "ALTER ROLE ALL RESET ALL",
                "GRANT a TO b",
            ]
        );
    }
}
