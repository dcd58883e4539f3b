//! The queries that fetch a [`crate::Catalogue`] as one JSON document, for PostgreSQL 12 and later.

use crate::name_types::name_type_oids;

/// To be executed before the query, in the same transaction: it makes the server qualify every name that it
/// prints, whatever the session's search_path is, and not compile the query, which takes longer than running it.
pub const CATALOGUE_SETUP: &str =
    "SET LOCAL search_path = pg_catalog; SET LOCAL jit = off; SET LOCAL statement_timeout = 0";

/// The settings with which a server begins every session, before those of its role and database (which [`catalogue_query`]
/// reads): rows of name and value. A superuser must ask, on a session that has set nothing and asked for nothing when it
/// began. Where its role or database say something, the server's own is in its files.
///
/// The search path is always known, since it decides which tables a statement means: sessions set it, so that the files
/// may change meanwhile.
pub const SERVER_SETTINGS_QUERY: &str = "
SELECT s.name, s.value
FROM (SELECT g.name,
             CASE WHEN g.source IN ('global', 'database', 'user', 'database user') THEN coalesce(
                      (SELECT f.setting FROM pg_catalog.pg_file_settings f
                       WHERE pg_catalog.lower(f.name) = pg_catalog.lower(g.name) AND f.applied
                       ORDER BY f.seqno DESC LIMIT 1),
                      CASE WHEN g.name = 'search_path' THEN g.boot_val END)
                  WHEN g.source <> 'default' OR g.name = 'search_path' THEN g.setting
             END AS value
      FROM pg_catalog.pg_settings g
      WHERE g.source IN ('configuration file', 'command line', 'environment variable', 'global', 'database', 'user', 'database user')
         OR g.name = 'search_path') s
WHERE s.value IS NOT NULL
ORDER BY s.name";

/// The query for a server of a version (`server_version_num`): one row with one column of type text.
#[must_use]
pub fn catalogue_query(server_version: u32) -> String {
    let nulls_equal = if server_version >= 150_000 { "i.indnullsnotdistinct" } else { "false" };
    // Until version 14 a function's body is always text.
    let body = if server_version >= 140_000 {
        "coalesce(pg_get_function_sqlbody(p.oid), p.prosrc)"
    } else {
        "p.prosrc"
    };
    QUERY
        .replace("{oids}", &oids())
        .replace("{partitioned_by_oids}", PARTITIONED_BY_OIDS)
        .replace("{nulls_equal}", nulls_equal)
        .replace("{body}", body)
        .replace("{made_of_cast_target}", &MADE_OF.replace("{type}", "c.casttarget"))
        .replace("{made_of_domain}", &MADE_OF.replace("{type}", "x.domain"))
}

/// The types that values of a type are a part of, itself first: domains over it, arrays of it, tables' and composites' rows.
/// A condition may follow.
const MADE_OF: &str = r"WITH RECURSIVE made (oid) AS (
                    SELECT {type}
                    UNION
                    SELECT parts.whole FROM made JOIN parts ON parts.part = made.oid
                )
                SELECT json_agg(json_build_object('schema', n.nspname, 'name', t.typname, 'shown', format_type(t.oid, NULL))
                                ORDER BY t.oid <> {type}, n.nspname, t.typname)
                FROM made JOIN pg_type t ON t.oid = made.oid JOIN pg_namespace n ON n.oid = t.typnamespace";

/// Types and what they are a part of, and those of which values show an OID as something else: see [`crate::catalogue::Oids`].
fn oids() -> String {
    OIDS.replace("{name_types}", &name_type_oids())
}

const OIDS: &str = r"parts (part, whole) AS (
    SELECT t.typbasetype, t.oid FROM pg_type t WHERE t.typtype = 'd'
    UNION ALL
    SELECT t.typelem, t.oid FROM pg_type t WHERE t.typelem <> 0 AND t.typcategory = 'A'
    UNION ALL
    SELECT a.atttypid, r.reltype FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND r.reltype <> 0
),
-- What shows an OID as a name or label, and what is made of it.
numbered (oid, is_name) AS (
    SELECT t.oid, true FROM pg_type t
    WHERE t.oid IN ({name_types})
    UNION
    SELECT t.oid, false FROM pg_type t WHERE t.typtype = 'e'
    UNION
    SELECT p.whole, n.is_name FROM numbered n JOIN (
        SELECT part, whole FROM parts
        UNION ALL SELECT g.rngsubtype, g.rngtypid FROM pg_range g
        UNION ALL SELECT g.rngsubtype, (to_jsonb(g) ->> 'rngmultitypid')::oid FROM pg_range g
    ) p ON p.part = n.oid WHERE p.whole IS NOT NULL
),
oids AS (
    SELECT n.oid, CASE WHEN bool_or(n.is_name) THEN 'n' ELSE 'l' END AS kind FROM numbered n GROUP BY n.oid
)";

/// Whether a table `c` finds the partition of a row by OIDs: those of names, or hashes of labels'.
const PARTITIONED_BY_OIDS: &str = r"c.relkind = 'p' AND EXISTS (
                SELECT FROM pg_partitioned_table k JOIN oids n ON n.kind = 'n' OR k.partstrat = 'h'
                WHERE k.partrelid = c.oid AND k.partstrat IN ('h', 'r') AND n.oid IN (
                    SELECT a.atttypid FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum = ANY (k.partattrs::int2[])
                    UNION ALL
                    -- The types of all parts of expressions, which the catalogue has in no other form.
                    SELECT m[1]::oid FROM regexp_matches(k.partexprs::text, ':[a-z]+type (\d+)', 'g') m))";

/// The query for the tables whose rows lie in other partitions on each server: one column, each qualified as SQL writes it.
#[must_use]
pub fn partitioned_by_oids_query() -> String {
    format!(
        "WITH RECURSIVE {} SELECT format('%I.%I', s.nspname, c.relname) FROM pg_class c \
         JOIN pg_namespace s ON s.oid = c.relnamespace WHERE {PARTITIONED_BY_OIDS} ORDER BY 1",
        oids()
    )
}

const QUERY: &str = r"
WITH RECURSIVE
schemas AS (
    SELECT oid, nspname FROM pg_namespace
    WHERE nspname NOT IN ('pg_catalog', 'information_schema') AND nspname !~ '^pg_(toast|temp)'
),
domains (oid, at, modifier, default_text) AS (
    SELECT t.oid, t.typbasetype, t.typtypmod, t.typdefault FROM pg_type t WHERE t.typtype = 'd'
    UNION ALL
    SELECT d.oid, t.typbasetype, CASE WHEN d.modifier >= 0 THEN d.modifier ELSE t.typtypmod END,
           coalesce(d.default_text, t.typdefault)
    FROM domains d JOIN pg_type t ON t.oid = d.at WHERE t.typtype = 'd'
),
bases AS (
    SELECT d.oid, d.at AS base, d.modifier, d.default_text
    FROM domains d JOIN pg_type t ON t.oid = d.at WHERE t.typtype <> 'd'
),
{oids},
relations AS (
    SELECT c.oid, s.nspname, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relispartition
    FROM pg_class c JOIN schemas s ON s.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
),
owned AS (
    SELECT d.refobjid AS table_oid, d.refobjsubid AS attnum, n.nspname, c.relname, c.oid
    FROM pg_depend d
    JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0
),
columns AS (
    SELECT a.attrelid, json_agg(json_build_object(
        'number', a.attnum,
        'name', a.attname,
        'type_name', format_type(a.atttypid, a.atttypmod),
        'type_oid', CASE WHEN bn.nspname = 'pg_catalog' THEN bt.oid::bigint ELSE 0 END,
        'modifier', CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE coalesce(b.modifier, -1) END,
        'type_kind', bt.typtype,
        'category', bt.typcategory,
        'domain', b.oid IS NOT NULL,
        'oids', n.kind,
        'not_null', a.attnotnull,
        'default', coalesce(pg_get_expr(ad.adbin, ad.adrelid), CASE WHEN a.attgenerated = '' THEN b.default_text END),
        'identity', nullif(a.attidentity, ''),
        'generated', nullif(a.attgenerated, ''),
        'deterministic', coalesce(co.collisdeterministic, true),
        'sequence', CASE WHEN o.table_oid IS NOT NULL THEN json_build_array(o.nspname, o.relname) END
    ) ORDER BY a.attnum) AS list
    FROM relations r
    JOIN pg_attribute a ON a.attrelid = r.oid
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN bases b ON b.oid = t.oid
    LEFT JOIN oids n ON n.oid = t.oid
    JOIN pg_type bt ON bt.oid = coalesce(b.base, t.oid)
    JOIN pg_namespace bn ON bn.oid = bt.typnamespace
    LEFT JOIN pg_attrdef ad ON ad.adrelid = a.attrelid AND ad.adnum = a.attnum
    LEFT JOIN pg_collation co ON co.oid = a.attcollation
    LEFT JOIN (SELECT DISTINCT ON (table_oid, attnum) * FROM owned ORDER BY table_oid, attnum, oid) o
           ON o.table_oid = a.attrelid AND o.attnum = a.attnum
    WHERE a.attnum > 0 AND NOT a.attisdropped
    GROUP BY a.attrelid
),
indexes AS (
    SELECT i.indrelid,
           json_agg(json_build_object(
               'name', i.relname, 'columns', i.key_columns, 'depends', i.depends, 'primary', i.indisprimary,
               'partial', i.partial, 'nulls_equal', i.nulls_equal, 'immediate', i.immediate
           ) ORDER BY i.indisprimary DESC, i.relname) FILTER (WHERE i.indisunique) AS unique_list,
           json_agg(i.key_columns ORDER BY i.relname) FILTER (WHERE NOT i.indisunique) AS list
    FROM (
        SELECT i.indrelid, i.indisunique, i.indisprimary, ic.relname,
           (SELECT coalesce(json_agg(k.attnum ORDER BY k.ord), '[]'::json)
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, ord) WHERE k.ord <= i.indnkeyatts) AS key_columns,
           (SELECT coalesce(json_agg(DISTINCT d.refobjsubid), '[]'::json) FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
              AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0) AS depends,
           i.indpred IS NOT NULL AS partial, {nulls_equal} AS nulls_equal,
           i.indimmediate AND i.indisvalid AS immediate
        FROM relations r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class ic ON ic.oid = i.indexrelid
        WHERE (i.indisready OR i.indisvalid) AND NOT ic.relispartition AND NOT i.indisexclusion
    ) i
    GROUP BY i.indrelid
),
checks AS (
    SELECT x.relation, json_agg(x.text ORDER BY x.text) AS list
    FROM (
        SELECT r.oid AS relation, pg_get_expr(k.conbin, k.conrelid) AS text
        FROM relations r JOIN pg_constraint k ON k.conrelid = r.oid WHERE k.contype = 'c'
        UNION
        SELECT r.oid, CASE WHEN k.conrelid = 0 THEN pg_get_expr(k.conbin, 0) END
        FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid
        JOIN (SELECT oid, oid AS at FROM domains UNION SELECT oid, at FROM domains) d ON d.oid = a.atttypid
        JOIN pg_constraint k ON k.contypid = d.at AND k.contype = 'c'
        WHERE a.attnum > 0 AND NOT a.attisdropped
    ) x
    WHERE x.text IS NOT NULL
    GROUP BY x.relation
)
SELECT json_build_object(
    'server_version', current_setting('server_version_num')::int,
    'database', current_database(),
    'schemas', (SELECT json_agg(nspname ORDER BY nspname) FROM pg_namespace),
    -- Foreign keys, unique keys and exclusions are checked by triggers, too, where they are.
    'deferrable', EXISTS (SELECT FROM pg_trigger g WHERE g.tgdeferrable),
    'tables', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', c.nspname,
            'name', c.relname,
            'kind', c.relkind,
            'persistence', c.relpersistence,
            'columns', coalesce(cols.list, '[]'::json),
            'unique', coalesce(i.unique_list, '[]'::json),
            'indexes', coalesce(i.list, '[]'::json),
            'foreign_keys', (SELECT coalesce(json_agg(json_build_object(
                    'name', k.conname, 'columns', k.conkey, 'parent_schema', pn.nspname, 'parent', pc.relname,
                    'parent_columns', k.confkey, 'on_delete', k.confdeltype, 'on_update', k.confupdtype,
                    'deferrable', k.condeferrable, 'validated', k.convalidated
                ) ORDER BY k.conname), '[]'::json)
                FROM pg_constraint k JOIN pg_class pc ON pc.oid = k.confrelid
                JOIN pg_namespace pn ON pn.oid = pc.relnamespace
                WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.conparentid = 0),
            'exclusion', EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'x'),
            'checks', coalesce(k.list, '[]'::json),
            'triggers', (SELECT coalesce(json_agg(json_build_object(
                    'name', g.tgname, 'function_schema', fn.nspname, 'function', f.proname, 'enabled', g.tgenabled,
                    'row', g.tgtype & 1 <> 0, 'before', g.tgtype & 66 <> 0, 'on_insert', g.tgtype & 4 <> 0,
                    'on_delete', g.tgtype & 8 <> 0, 'on_update', g.tgtype & 16 <> 0,
                    'on_truncate', g.tgtype & 32 <> 0,
                    'condition', CASE WHEN g.tgqual IS NOT NULL THEN pg_get_triggerdef(g.oid) END
                ) ORDER BY g.tgname), '[]'::json)
                FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid JOIN pg_namespace fn ON fn.oid = f.pronamespace
                WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'),
            'rules', EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_enabled <> 'D'),
            'row_security', c.relrowsecurity,
            'policies', (SELECT coalesce(json_agg(x.text ORDER BY x.text), '[]'::json) FROM (
                    SELECT pg_get_expr(y.polqual, y.polrelid) AS text FROM pg_policy y WHERE y.polrelid = c.oid
                    UNION
                    SELECT pg_get_expr(y.polwithcheck, y.polrelid) FROM pg_policy y WHERE y.polrelid = c.oid
                ) x WHERE x.text IS NOT NULL),
            'parents', (SELECT coalesce(json_agg(json_build_array(pn.nspname, pc.relname) ORDER BY h.inhseqno), '[]'::json)
                FROM pg_inherits h JOIN pg_class pc ON pc.oid = h.inhparent
                JOIN pg_namespace pn ON pn.oid = pc.relnamespace WHERE h.inhrelid = c.oid),
            'is_partition', c.relispartition,
            'partitioned_by_oids', {partitioned_by_oids}
        ) ORDER BY c.nspname, c.relname), '[]'::json)
        FROM relations c
        LEFT JOIN columns cols ON cols.attrelid = c.oid
        LEFT JOIN indexes i ON i.indrelid = c.oid
        LEFT JOIN checks k ON k.relation = c.oid),
    'views', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', s.nspname,
            'name', c.relname,
            'columns', (SELECT coalesce(json_agg(a.attname ORDER BY a.attnum), '[]'::json) FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            'definition', pg_get_viewdef(c.oid),
            'materialised', c.relkind = 'm',
            'oids', (SELECT n.kind FROM oids n WHERE n.oid = c.reltype AND c.relkind = 'm'),
            'rules', EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN')
                     OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal)
        ) ORDER BY s.nspname, c.relname), '[]'::json)
        FROM pg_class c JOIN schemas s ON s.oid = c.relnamespace
        WHERE c.relkind IN ('v', 'm') AND c.relpersistence <> 't'),
    'sequences', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', s.nspname, 'name', c.relname, 'type_name', format_type(q.seqtypid, NULL),
            'start', q.seqstart, 'increment', q.seqincrement, 'min', q.seqmin, 'max', q.seqmax,
            'cache', q.seqcache, 'cycle', q.seqcycle,
            'owner', CASE WHEN a.attrelid IS NOT NULL THEN json_build_array(tn.nspname, tc.relname, a.attname) END
        ) ORDER BY s.nspname, c.relname), '[]'::json)
        FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid JOIN schemas s ON s.oid = c.relnamespace
        LEFT JOIN (SELECT DISTINCT ON (oid) * FROM owned ORDER BY oid, table_oid, attnum) o ON o.oid = c.oid
        LEFT JOIN pg_attribute a ON a.attrelid = o.table_oid AND a.attnum = o.attnum
        LEFT JOIN pg_class tc ON tc.oid = a.attrelid
        LEFT JOIN pg_namespace tn ON tn.oid = tc.relnamespace
        WHERE c.relpersistence <> 't'),
    'functions', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', s.nspname, 'name', p.proname, 'kind', p.prokind, 'arguments', p.pronargs,
            'defaults', p.pronargdefaults, 'variadic', p.provariadic <> 0,
            'set', p.proretset, 'argument_names', coalesce(CASE WHEN p.proargmodes IS NULL THEN array_to_json(p.proargnames) ELSE (
                SELECT json_agg(coalesce(n.name, '') ORDER BY n.ord)
                FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY AS n (name, mode, ord)
                WHERE n.mode IN ('i', 'b', 'v')) END, '[]'::json),
            'default_values', pg_get_expr(p.proargdefaults, 0),
            -- Configurations and dictionaries of text search are told by what the function does with them, as labels are, and
            -- as what may be either.
            'oids', (
                SELECT max(CASE WHEN t.oid IN (3734, 3769) OR t.typtype = 'p' AND t.typname ~ '^any' THEN 'l' ELSE o.kind END)
                FROM pg_type t LEFT JOIN oids o ON o.oid = t.oid
                WHERE t.oid = p.prorettype OR t.oid = ANY (p.proargtypes::oid[]) OR t.oid = ANY (p.proallargtypes)),
            'volatility', coalesce((
                -- An aggregate varies as far as the functions of which it is made. Those in C are called by nobody else,
                -- and are seldom declared as what they are.
                SELECT max(f.provolatile::text) FROM pg_aggregate a JOIN pg_proc f ON f.oid IN (
                    a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn, a.aggmtransfn,
                    a.aggminvtransfn, a.aggmfinalfn)
                JOIN pg_language fl ON fl.oid = f.prolang AND fl.lanname NOT IN ('c', 'internal')
                WHERE a.aggfnoid = p.oid), p.provolatile::text),
            'made_of', coalesce((
                SELECT json_agg(DISTINCT jsonb_build_array(fn.nspname, f.proname)) FROM pg_aggregate a JOIN pg_proc f ON f.oid IN (
                    a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn, a.aggmtransfn,
                    a.aggminvtransfn, a.aggmfinalfn)
                JOIN pg_language fl ON fl.oid = f.prolang AND fl.lanname NOT IN ('c', 'internal')
                JOIN pg_namespace fn ON fn.oid = f.pronamespace
                WHERE a.aggfnoid = p.oid AND f.provolatile <> 'i'), '[]'::json),
            'language', l.lanname,
            'body', CASE WHEN l.lanname IN ('c', 'internal') THEN '' ELSE {body} END,
            'settings', coalesce(array_to_json(p.proconfig), '[]'::json),
            'extension', (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                          WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e' LIMIT 1)
        ) ORDER BY s.nspname, p.proname, p.oid), '[]'::json)
        FROM pg_proc p JOIN schemas s ON s.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang),
    'builtins', (
        SELECT coalesce(json_agg(json_build_object(
            'name', x.proname, 'arguments', json_build_array(x.least, x.greatest),
            'volatility', x.volatility, 'kind', x.prokind
        ) ORDER BY x.proname, x.least, x.greatest, x.prokind), '[]'::json)
        FROM (
            SELECT p.proname, p.prokind, p.pronargs - p.pronargdefaults AS least,
                   CASE WHEN p.provariadic <> 0 THEN 255 ELSE p.pronargs END AS greatest,
                   CASE max(CASE p.provolatile WHEN 'i' THEN 0 WHEN 's' THEN 1 ELSE 2 END)
                        WHEN 0 THEN 'i' WHEN 1 THEN 's' ELSE 'v' END AS volatility
            FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace GROUP BY 1, 2, 3, 4
        ) x),
    'operators', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', s.nspname, 'name', o.oprname, 'volatility', p.provolatile,
            'of_builtin_types', NOT EXISTS (
                SELECT FROM pg_type t WHERE t.oid IN (o.oprleft, o.oprright)
                AND t.typnamespace <> 'pg_catalog'::regnamespace)
        ) ORDER BY s.nspname, o.oprname, o.oid), '[]'::json)
        FROM pg_operator o JOIN schemas s ON s.oid = o.oprnamespace JOIN pg_proc p ON p.oid = o.oprcode),
    'casts', (
        SELECT coalesce(json_agg(json_build_object(
            'source', json_build_object('types', (
                SELECT json_agg(json_build_object('schema', n.nspname, 'name', t.typname, 'shown', format_type(t.oid, NULL))
                                ORDER BY t.oid <> c.castsource, n.nspname, t.typname)
                FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
                WHERE t.oid = c.castsource
                   OR n.oid IN (SELECT oid FROM schemas) AND t.oid IN (SELECT d.oid FROM domains d WHERE d.at = c.castsource))),
            'target', json_build_object('types', (
                {made_of_cast_target}
                WHERE t.oid IN (c.casttarget, tt.typarray) OR n.oid IN (SELECT oid FROM schemas))),
            'context', c.castcontext,
            'function', CASE WHEN p.oid IS NOT NULL THEN json_build_array(pn.nspname, p.proname) END,
            'arguments', coalesce(p.pronargs, 0),
            'volatility', coalesce(p.provolatile, ti.provolatile),
            'functions', (
                SELECT coalesce(json_agg(DISTINCT jsonb_build_array(s.nspname, f.proname)), '[]'::json)
                FROM pg_proc f JOIN schemas s ON s.oid = f.pronamespace
                WHERE (c.castsource >= 16384 AND (c.castsource = ANY (f.proargtypes::oid[]) OR c.castsource = f.prorettype
                                                  OR c.castsource = ANY (f.proallargtypes)))
                   -- Where a value of the source can only come from what is looked at, its target says nothing.
                   OR (c.casttarget >= 16384 AND (c.castsource < 16384 OR c.castcontext <> 'i')
                       AND (c.casttarget = ANY (f.proargtypes::oid[]) OR c.casttarget = f.prorettype))),
            'operators', (
                SELECT coalesce(json_agg(DISTINCT o.oprname), '[]'::json)
                FROM pg_operator o
                WHERE (c.castsource >= 16384 AND c.castsource = o.oprresult)
                   OR (c.castsource < 16384 AND c.casttarget >= 16384 AND c.casttarget IN (o.oprleft, o.oprright)))
        ) ORDER BY format_type(c.castsource, NULL), format_type(c.casttarget, NULL)), '[]'::json)
        FROM pg_cast c
        JOIN pg_type tt ON tt.oid = c.casttarget
        JOIN pg_proc ti ON ti.oid = tt.typinput
        LEFT JOIN pg_proc p ON p.oid = c.castfunc
        LEFT JOIN pg_namespace pn ON pn.oid = p.pronamespace
        WHERE c.oid >= 16384
          AND (p.provolatile <> 'i'
               -- By input and output functions: what reads the environment are types of the system.
               OR c.castmethod = 'i' AND ti.provolatile <> 'i' AND tt.typnamespace = 'pg_catalog'::regnamespace)),
    'domain_checks', (
        SELECT coalesce(json_agg(json_build_object(
            'check', x.text,
            'types', (
                {made_of_domain}),
            'functions', (
                SELECT coalesce(json_agg(DISTINCT jsonb_build_array(s.nspname, f.proname)), '[]'::json)
                FROM pg_proc f JOIN schemas s ON s.oid = f.pronamespace
                WHERE x.domain = ANY (f.proargtypes::oid[]) OR x.domain = f.prorettype)
        ) ORDER BY format_type(x.domain, NULL), x.text), '[]'::json)
        FROM (
            SELECT k.contypid AS domain, CASE WHEN k.conrelid = 0 THEN pg_get_expr(k.conbin, 0) END AS text
            FROM pg_constraint k JOIN pg_type t ON t.oid = k.contypid JOIN schemas s ON s.oid = t.typnamespace
            WHERE k.contype = 'c'
              -- One that calls what may vary, or may name what does. What belongs to the system has no dependency: its names tell.
              AND (EXISTS (SELECT FROM pg_depend d JOIN pg_proc f ON f.oid = d.refobjid
                           WHERE d.classid = 'pg_constraint'::regclass AND d.objid = k.oid
                             AND d.refclassid = 'pg_proc'::regclass AND f.provolatile <> 'i')
                   OR EXISTS (SELECT FROM regexp_matches(pg_get_constraintdef(k.oid), '([a-z_0-9]+)[(]', 'g') m
                              JOIN pg_proc f ON f.proname = m[1] AND f.pronamespace = 'pg_catalog'::regnamespace
                              WHERE f.provolatile <> 'i')
                   OR pg_get_constraintdef(k.oid) ~* '\y(session_user|current_\w+|user|local\w+)\y')
        ) x WHERE x.text IS NOT NULL),
    'types', (
        SELECT coalesce(json_agg(json_build_object(
            'schema', s.nspname, 'name', t.typname, 'kind', t.typtype,
            'base_oid', CASE WHEN bt.typnamespace = 'pg_catalog'::regnamespace THEN bt.oid::bigint ELSE 0 END,
            'oids', n.kind,
            'check', (SELECT string_agg(CASE WHEN k.conrelid = 0 THEN pg_get_expr(k.conbin, 0) END, ' AND ') FROM pg_constraint k
                      WHERE k.contypid = t.oid AND k.contype = 'c'),
            'default', b.default_text
        ) ORDER BY s.nspname, t.typname), '[]'::json)
        FROM pg_type t JOIN schemas s ON s.oid = t.typnamespace
        LEFT JOIN bases b ON b.oid = t.oid
        LEFT JOIN oids n ON n.oid = t.oid
        LEFT JOIN pg_type bt ON bt.oid = b.base
        LEFT JOIN pg_class rc ON rc.oid = t.typrelid
        WHERE (rc.relkind IS NULL OR rc.relkind = 'c') AND (t.typcategory <> 'A' OR t.typtype = 'd')),
    'extensions', (
        SELECT coalesce(json_agg(json_build_object('name', extname, 'version', extversion) ORDER BY extname), '[]'::json)
        FROM pg_extension),
    'settings', (
        SELECT coalesce(json_agg(json_build_object(
            'role', x.role, 'name', x.name, 'value', x.value) ORDER BY x.rank, x.role, x.name), '[]'::json)
        FROM (
            SELECT CASE WHEN s.setrole = 0 THEN 1 ELSE 3 END + CASE WHEN s.setdatabase = 0 THEN 0 ELSE 1 END AS rank,
                   r.rolname AS role, split_part(c.text, '=', 1) AS name, substr(c.text, strpos(c.text, '=') + 1) AS value
            FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS c (text)
            LEFT JOIN pg_roles r ON r.oid = s.setrole
            WHERE (s.setdatabase = 0 OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
              AND (s.setrole = 0 OR r.oid IS NOT NULL)
        ) x),
    'event_functions', (
        SELECT coalesce(json_agg(DISTINCT jsonb_build_array(n.nspname, p.proname)), '[]'::json)
        FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE e.evtenabled IN ('O', 'A') AND e.evtevent <> 'login'),
    'event_triggers', (
        SELECT coalesce(json_agg(json_build_object(
            'name', e.evtname, 'tags', coalesce(array_to_json(e.evttags), '[]'::json),
            'body', CASE WHEN l.lanname = 'plpgsql' THEN p.prosrc END) ORDER BY e.evtname), '[]'::json)
        FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_language l ON l.oid = p.prolang
        WHERE e.evtenabled IN ('O', 'A') AND p.provolatile <> 'i' AND e.evtevent <> 'login'
          -- It only writes to the server's log.
          AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
                          WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
                            AND x.extname = 'pgaudit'))
)::text";
