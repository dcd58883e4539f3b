//! What a replica's definitions and sequences are, in a form in which those of two replicas can be compared: without object
//! ids, and without what a dump and its restoration write differently.

use std::collections::BTreeMap;

use crate::lane::{Lane, LaneError};

/// How many sequences are read by one query.
const SEQUENCES_AT_ONCE: usize = 200;

/// One object: what it is and its name, and what there is to compare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// As in `index public.t_pkey`.
    pub object: String,
    /// Equal if it is the same on both.
    pub value: String,
}

/// An expression or definition as the server writes it, without parentheses, blanks and casts between kinds of text: a
/// condition on a varchar column is written in another way once it was dumped and restored. Literals and names in quotes
/// stay as they are.
fn plain(sql: &str) -> String {
    format!(
        "pg_catalog.regexp_replace({sql}, \
         '(''[^'']*''|\"[^\"]*\")|[()\\s]|::(?:text|character varying|character|bpchar)(?:\\[\\])?', '\\1', 'g')"
    )
}

/// A condition for what no extension owns: that is as the extension's version says, and belongs to whoever made it.
/// `catalogues` are those in which it may be listed as a member, with its id there.
fn belongs_to_no_extension(catalogues: &[(&str, &str)]) -> String {
    let is_member = |(catalogue, oid): &(&str, &str)| {
        format!(
            "NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = 'pg_catalog.{catalogue}'::pg_catalog.regclass \
                 AND e.objid = {oid} AND e.deptype = 'e')"
        )
    };
    catalogues.iter().map(is_member).collect::<Vec<_>>().join(" AND ")
}

/// Who may do what, by names; who granted it does not matter. Privileges that were never changed are the owner's.
fn privileges(acl: &str) -> String {
    format!(
        "ARRAY(SELECT pg_catalog.format('%s %s %s', \
         CASE g.grantee WHEN 0 THEN 'public' ELSE pg_catalog.pg_get_userbyid(g.grantee)::text END, \
         g.privilege_type, g.is_grantable) FROM pg_catalog.aclexplode({acl}) g ORDER BY 1)"
    )
}

/// A condition for schemas whose contents are compared.
fn is_users(schema: &str) -> String {
    format!("{schema} !~ '^pg_' AND {schema} NOT IN ('information_schema', 'onecopy')")
}

/// What is said of objects of users, of the database and of roles. Extensions bring their own comments along.
fn comments_sql() -> String {
    format!(
        "SELECT 'comment on', pg_catalog.format('%s %s', i.type, i.identity), pg_catalog.to_jsonb(d.description) \
         FROM pg_catalog.pg_description d \
         CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classoid, d.objoid, d.objsubid) i \
         WHERE d.classoid <> 'pg_catalog.pg_largeobject'::pg_catalog.regclass AND (d.objoid >= 16384 \
         OR d.classoid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.objoid = 'public'::pg_catalog.regnamespace) \
         AND i.type IS NOT NULL AND {users} AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e \
         WHERE e.classid = d.classoid AND e.objid = d.objoid AND e.deptype = 'e') \
         UNION ALL SELECT 'comment on', 'this database', pg_catalog.to_jsonb(d.description) \
         FROM pg_catalog.pg_shdescription d JOIN pg_catalog.pg_database b ON b.oid = d.objoid \
         WHERE d.classoid = 'pg_catalog.pg_database'::pg_catalog.regclass AND b.datname = pg_catalog.current_database() \
         UNION ALL SELECT 'comment on', pg_catalog.format('role %I', r.rolname), pg_catalog.to_jsonb(d.description) \
         FROM pg_catalog.pg_shdescription d JOIN pg_catalog.pg_roles r ON r.oid = d.objoid \
         WHERE d.classoid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND r.rolname !~ '^pg_'",
        users = is_users("coalesce(i.schema, '')"),
    )
}

/// The database itself, and what it and its roles begin with. Each server salts the passwords of SCRAM for itself, so that
/// only the way in which they are kept can be compared; nothing of a password leaves the server but a hash.
fn roles_sql() -> String {
    let role = |column: &str| format!("pg_catalog.pg_get_userbyid({column})");
    format!(
        "SELECT 'role', pg_catalog.quote_ident(r.rolname), \
         (pg_catalog.to_jsonb(r) - ARRAY['oid', 'rolname', 'rolpassword']) || pg_catalog.jsonb_build_object('password', \
         CASE WHEN r.rolpassword LIKE 'SCRAM-SHA-256$%' THEN pg_catalog.split_part(r.rolpassword, ':', 1) ELSE r.rolpassword END) \
         FROM pg_catalog.pg_authid r WHERE r.rolname !~ '^pg_' \
         UNION ALL SELECT 'membership', pg_catalog.format('of role %I in %I', {member}, {group}), \
         pg_catalog.jsonb_agg(o.options ORDER BY o.options) \
         FROM pg_catalog.pg_auth_members m CROSS JOIN LATERAL \
         (SELECT pg_catalog.to_jsonb(m) - ARRAY['oid', 'roleid', 'member', 'grantor'] AS options) o \
         WHERE {member} !~ '^pg_' GROUP BY m.member, m.roleid \
         UNION ALL SELECT 'setting', pg_catalog.format('%s of %s%s', pg_catalog.split_part(c.setting, '=', 1), \
         CASE WHEN s.setrole <> 0 THEN pg_catalog.format('role %I', {of_setting}) WHEN s.setdatabase <> 0 THEN 'this database' \
         ELSE 'all roles' END, CASE WHEN s.setrole <> 0 AND s.setdatabase <> 0 THEN ' in this database' END), \
         pg_catalog.to_jsonb(c.setting) \
         FROM pg_catalog.pg_db_role_setting s CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS c (setting) \
         WHERE s.setdatabase IN (0, (SELECT b.oid FROM pg_catalog.pg_database b WHERE b.datname = pg_catalog.current_database())) \
         UNION ALL SELECT 'this', 'database', pg_catalog.jsonb_build_array({owner}, b.datconnlimit, {privileges}) \
         FROM pg_catalog.pg_database b WHERE b.datname = pg_catalog.current_database()",
        member = role("m.member"),
        group = role("m.roleid"),
        of_setting = role("s.setrole"),
        owner = role("b.datdba"),
        privileges = privileges("coalesce(b.datacl, pg_catalog.acldefault('d', b.datdba))"),
    )
}

/// What is no part of a table and yet concerns some: statistics of several columns, publications, default privileges.
fn beside_tables_sql() -> String {
    let owner = |column: &str| format!("pg_catalog.pg_get_userbyid({column})");
    format!(
        "SELECT 'statistics', pg_catalog.format('%I.%I', n.nspname, s.stxname), \
         pg_catalog.jsonb_build_array({statistics}, pg_catalog.to_jsonb(s) -> 'stxstattarget', {of_statistics}) \
         FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace WHERE {users} \
         UNION ALL SELECT 'publication', pg_catalog.quote_ident(p.pubname), \
         pg_catalog.jsonb_build_array(pg_catalog.to_jsonb(p) - ARRAY['oid', 'pubowner'], {of_publication}, \
         CASE WHEN NOT p.puballtables THEN (SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(t) ORDER BY t.schemaname, t.tablename) \
         FROM pg_catalog.pg_publication_tables t WHERE t.pubname = p.pubname) END) \
         FROM pg_catalog.pg_publication p WHERE {publications} \
         UNION ALL SELECT 'default privileges', pg_catalog.format('of role %I%s on %s', {of_defaults}, \
         CASE WHEN d.defaclnamespace <> 0 THEN ' in schema ' || d.defaclnamespace::pg_catalog.regnamespace::text END, \
         CASE d.defaclobjtype WHEN 'r' THEN 'tables' WHEN 'S' THEN 'sequences' WHEN 'f' THEN 'functions' WHEN 'T' THEN 'types' \
         WHEN 'n' THEN 'schemas' ELSE d.defaclobjtype::text END), pg_catalog.to_jsonb({defaults}) \
         FROM pg_catalog.pg_default_acl d",
        statistics = plain("pg_catalog.pg_get_statisticsobjdef(s.oid)"),
        of_statistics = owner("s.stxowner"),
        users = is_users("n.nspname"),
        of_publication = owner("p.pubowner"),
        publications = belongs_to_no_extension(&[("pg_publication", "p.oid")]),
        of_defaults = owner("d.defaclrole"),
        defaults = privileges("d.defaclacl"),
    )
}

/// Lists every object of users with a hash of its definition.
fn definitions_sql() -> String {
    let owner = |column: &str| format!("pg_catalog.pg_get_userbyid({column})");
    let users = is_users("n.nspname");
    let columns = format!(
        "(SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attname, \
         pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, {default}, a.attidentity, a.attgenerated, \
         (SELECT l.collname FROM pg_catalog.pg_collation l WHERE l.oid = a.attcollation), {privileges}) ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)",
        default = plain("pg_catalog.pg_get_expr(d.adbin, d.adrelid)"),
        privileges = privileges("a.attacl"),
    );
    let relations = format!(
        "SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' \
         WHEN 'c' THEN 'type' WHEN 'f' THEN 'foreign table' ELSE 'table' END, \
         pg_catalog.format('%I.%I', n.nspname, c.relname), \
         pg_catalog.jsonb_build_array(c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, \
         ARRAY(SELECT o FROM pg_catalog.unnest(c.reloptions) o ORDER BY 1), \
         (SELECT m.amname FROM pg_catalog.pg_am m WHERE m.oid = c.relam), {owner}, {privileges}, {view}, \
         pg_catalog.pg_get_partkeydef(c.oid), {bound}, \
         ARRAY(SELECT i.inhparent::pg_catalog.regclass::text FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid ORDER BY i.inhseqno), \
         (SELECT pg_catalog.jsonb_build_array(pg_catalog.format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, \
         s.seqmax, s.seqcycle) FROM pg_catalog.pg_sequence s WHERE s.seqrelid = c.oid), \
         (SELECT pg_catalog.format('%s.%I', e.refobjid::pg_catalog.regclass, a.attname) FROM pg_catalog.pg_depend e \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = e.refobjid AND a.attnum = e.refobjsubid \
         WHERE c.relkind = 'S' AND e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND e.objid = c.oid \
         AND e.refobjsubid > 0 AND e.deptype IN ('a', 'i') LIMIT 1), {columns}) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'c', 'f') AND {users} AND {nobodys}",
        // Of a composite type the type is the member.
        nobodys = belongs_to_no_extension(&[("pg_class", "c.oid"), ("pg_type", "c.reltype")]),
        owner = owner("c.relowner"),
        privileges = privileges(
            "coalesce(c.relacl, pg_catalog.acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", c.relowner))"
        ),
        view = plain("CASE WHEN c.relkind IN ('v', 'm') THEN pg_catalog.pg_get_viewdef(c.oid) END"),
        bound = plain("pg_catalog.pg_get_expr(c.relpartbound, c.oid)"),
    );
    // Those that a partition has of its parent are named by the server.
    let constraints = format!(
        "SELECT 'constraint', pg_catalog.format('%I on %s', o.conname, \
         CASE o.conrelid WHEN 0 THEN pg_catalog.format_type(o.contypid, NULL) ELSE o.conrelid::pg_catalog.regclass::text END), \
         pg_catalog.jsonb_build_array(o.contype, {definition}, o.convalidated) \
         FROM pg_catalog.pg_constraint o JOIN pg_catalog.pg_namespace n ON n.oid = o.connamespace \
         WHERE o.contype <> 't' AND o.conparentid = 0 AND {users}",
        definition = plain("pg_catalog.pg_get_constraintdef(o.oid)"),
    );
    let indexes = format!(
        "SELECT 'index', pg_catalog.format('%I.%I', n.nspname, c.relname), \
         pg_catalog.jsonb_build_array({definition}, i.indisvalid, i.indisclustered, i.indisreplident) \
         FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE {users}",
        definition = plain("pg_catalog.pg_get_indexdef(i.indexrelid)"),
    );
    let triggers = format!(
        "SELECT 'trigger', pg_catalog.format('%I on %I.%I', t.tgname, n.nspname, c.relname), \
         pg_catalog.jsonb_build_array({definition}, t.tgenabled) \
         FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE NOT t.tgisinternal AND {users}",
        definition = plain("pg_catalog.pg_get_triggerdef(t.oid)"),
    );
    let rules = format!(
        "SELECT 'rule', pg_catalog.format('%I on %I.%I', r.rulename, n.nspname, c.relname), \
         pg_catalog.jsonb_build_array({definition}, r.ev_enabled) \
         FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.rulename <> '_RETURN' AND {users}",
        definition = plain("pg_catalog.pg_get_ruledef(r.oid)"),
    );
    let policies = format!(
        "SELECT 'policy', pg_catalog.format('%I on %I.%I', p.polname, n.nspname, c.relname), \
         pg_catalog.jsonb_build_array(p.polcmd, p.polpermissive, \
         ARRAY(SELECT pg_catalog.pg_get_userbyid(r) FROM pg_catalog.unnest(p.polroles) r ORDER BY 1), {using}, {check}) \
         FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE {users}",
        using = plain("pg_catalog.pg_get_expr(p.polqual, p.polrelid)"),
        check = plain("pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid)"),
    );
    let functions = format!(
        "SELECT CASE p.prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END, \
         pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)), \
         pg_catalog.jsonb_build_array({definition}, p.prosrc, {owner}, {privileges}, \
         (SELECT pg_catalog.jsonb_build_array(a.aggkind, a.aggtransfn::text, a.aggfinalfn::text, a.aggcombinefn::text, \
         a.aggmtransfn::text, pg_catalog.format_type(a.aggtranstype, NULL), a.agginitval) \
         FROM pg_catalog.pg_aggregate a WHERE a.aggfnoid = p.oid)) \
         FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE {users} AND {nobodys}",
        nobodys = belongs_to_no_extension(&[("pg_proc", "p.oid")]),
        definition = plain("CASE WHEN p.prokind <> 'a' THEN pg_catalog.pg_get_functiondef(p.oid) END"),
        owner = owner("p.proowner"),
        privileges = privileges("coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))"),
    );
    let types = format!(
        "SELECT CASE t.typtype WHEN 'd' THEN 'domain' ELSE 'type' END, pg_catalog.format('%I.%I', n.nspname, t.typname), \
         pg_catalog.jsonb_build_array(t.typtype, t.typnotnull, {default}, \
         CASE t.typtype WHEN 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END, \
         ARRAY(SELECT e.enumlabel FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder), \
         (SELECT pg_catalog.format_type(r.rngsubtype, NULL) FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid), \
         {owner}, {privileges}) \
         FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
         WHERE t.typtype IN ('d', 'e', 'r') AND {users} AND {nobodys}",
        nobodys = belongs_to_no_extension(&[("pg_type", "t.oid")]),
        default = plain("t.typdefault"),
        owner = owner("t.typowner"),
        privileges = privileges("coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner))"),
    );
    let schemas = format!(
        "SELECT 'schema', pg_catalog.quote_ident(n.nspname), pg_catalog.jsonb_build_array({owner}, {privileges}) \
         FROM pg_catalog.pg_namespace n WHERE {users} AND {nobodys}",
        nobodys = belongs_to_no_extension(&[("pg_namespace", "n.oid")]),
        owner = owner("n.nspowner"),
        privileges = privileges("coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))"),
    );
    let others = format!(
        "SELECT 'extension', pg_catalog.quote_ident(x.extname), \
         pg_catalog.jsonb_build_array(x.extversion, n.nspname) \
         FROM pg_catalog.pg_extension x JOIN pg_catalog.pg_namespace n ON n.oid = x.extnamespace \
         UNION ALL SELECT 'event trigger', pg_catalog.quote_ident(v.evtname), \
         pg_catalog.jsonb_build_array(v.evtevent, v.evtfoid::pg_catalog.regproc::text, v.evtenabled, v.evttags) \
         FROM pg_catalog.pg_event_trigger v WHERE {of_events} \
         UNION ALL SELECT 'cast', pg_catalog.format('%s AS %s', pg_catalog.format_type(k.castsource, NULL), \
         pg_catalog.format_type(k.casttarget, NULL)), \
         pg_catalog.jsonb_build_array(k.castfunc::pg_catalog.regprocedure::text, k.castcontext, k.castmethod) \
         FROM pg_catalog.pg_cast k WHERE k.oid >= 16384 AND {casts}",
        of_events = belongs_to_no_extension(&[("pg_event_trigger", "v.oid")]),
        casts = belongs_to_no_extension(&[("pg_cast", "k.oid")]),
    );
    let beside = [comments_sql(), roles_sql(), beside_tables_sql(), others];
    let all = [relations, constraints, indexes, triggers, rules, policies, functions, types, schemas];
    let all: Vec<String> = all.into_iter().chain(beside).collect();
    format!(
        "SELECT kind || ' ' || name, pg_catalog.hashtextextended(definition::text, 0) \
         FROM ({}) AS object (kind, name, definition) ORDER BY 1, 2",
        all.join(" UNION ALL ")
    )
}

/// The definitions of all objects of users, with `search_path` at `pg_catalog`, so that names are written in full, in the
/// lane's open transaction.
pub async fn definitions(lane: &mut Lane) -> Result<Vec<Fingerprint>, LaneError> {
    // To compile hundreds of expressions took seconds, to evaluate them a thousandth of that.
    lane.command("SET LOCAL jit = off").await?;
    Ok(lane.query(&definitions_sql()).await?.into_iter().map(fingerprint).collect())
}

/// Which number each sequence of users gives next. No snapshot keeps a sequence as it was: nobody may draw meanwhile.
pub async fn sequences(lane: &mut Lane) -> Result<Vec<Fingerprint>, LaneError> {
    let listed = lane
        .query(&format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), s.seqincrement FROM pg_catalog.pg_sequence s \
             JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE {} ORDER BY 1",
            is_users("n.nspname")
        ))
        .await?;
    let listed: Vec<(String, String)> = listed
        .into_iter()
        .filter_map(|row| {
            let mut row = row.into_iter().flatten();
            Some((row.next()?, row.next()?))
        })
        .collect();
    let mut found = Vec::with_capacity(listed.len());
    for some in listed.chunks(SEQUENCES_AT_ONCE) {
        let next = |(name, increment): &(String, String)| {
            // As a number with more digits: the last value plus the increment may be none of the sequence's type.
            format!(
                "SELECT 'sequence ' || '{}', last_value::numeric + CASE WHEN is_called THEN {increment} ELSE 0 END FROM {name}",
                name.replace('\'', "''")
            )
        };
        let queries: Vec<String> = some.iter().map(next).collect();
        found.extend(lane.query(&queries.join(" UNION ALL ")).await?.into_iter().map(fingerprint));
    }
    Ok(found)
}

fn fingerprint(row: Vec<Option<String>>) -> Fingerprint {
    let mut row = row.into_iter().map(Option::unwrap_or_default);
    Fingerprint { object: row.next().unwrap_or_default(), value: row.next().unwrap_or_default() }
}

/// The objects that differ, and those that one has and the other lacks.
pub fn differences(a: &[Fingerprint], b: &[Fingerprint]) -> Vec<String> {
    let (a, b) = (by_object(a), by_object(b));
    let mut found = Vec::new();
    for (object, value) in &a {
        match b.get(object) {
            None => found.push(format!("{object} (missing)")),
            Some(other) if other == value => {}
            Some(_) => found.push(format!("{object} ({})", what_differs(object))),
        }
    }
    found.extend(
        b.keys().filter(|object| !a.contains_key(*object)).map(|object| format!("{object} (missing)")),
    );
    found
}

/// What it is of an object that both have and that is not the same.
fn what_differs(object: &str) -> &'static str {
    match object.split(' ').next() {
        Some("comment") => "text",
        Some("setting") => "value",
        Some("role") => "attributes or kind of password",
        Some("membership") => "options",
        _ => "definition",
    }
}

/// The sequences of both that stand at different places.
pub fn places(a: &[Fingerprint], b: &[Fingerprint]) -> Vec<String> {
    let (a, b) = (by_object(a), by_object(b));
    let differs = |(object, value): (&&str, &&str)| {
        let other = b.get(object).filter(|other| *other != value)?;
        Some(format!("{object} (next {value} and {other})"))
    };
    a.iter().filter_map(differs).collect()
}

fn by_object(all: &[Fingerprint]) -> BTreeMap<&str, &str> {
    all.iter().map(|one| (one.object.as_str(), one.value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(&str, &str)]) -> Vec<Fingerprint> {
        all.iter()
            .map(|(object, value)| Fingerprint { object: (*object).into(), value: (*value).into() })
            .collect()
    }

    #[test]
    fn objects_that_differ_are_named_with_how() {
        let a = of(&[("table s.t", "1"), ("index s.i", "2"), ("view s.v", "3")]);
        let b = of(&[("table s.t", "1"), ("index s.j", "2"), ("view s.v", "4")]);
        assert_eq!(
            differences(&a, &b),
            ["index s.i (missing)", "view s.v (definition)", "index s.j (missing)"]
        );
        assert_eq!(differences(&a, &a), [""; 0]);
        let a = of(&[("comment on table s.t", "1"), ("setting work_mem of role r", "2"), ("role r", "3")]);
        let b = of(&[("comment on table s.t", "2"), ("setting work_mem of role r", "3"), ("role r", "4")]);
        assert_eq!(
            differences(&a, &b),
            [
                "comment on table s.t (text)",
                "role r (attributes or kind of password)",
                "setting work_mem of role r (value)"
            ]
        );
        let (a, b) = (of(&[("sequence s.q", "12")]), of(&[("sequence s.q", "1001")]));
        assert_eq!(places(&a, &b), ["sequence s.q (next 12 and 1001)"]);
    }
}
