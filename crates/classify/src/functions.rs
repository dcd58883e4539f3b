//! What functions of `pg_catalog` do beyond computing a value from their arguments.
//!
//! Volatility alone does not tell: `now()` can be frozen, `nextval` is handed out by the scheduler, `to_char`
//! needs only the recorded settings, and `pg_reload_conf` acts on one server. A built-in function that is not
//! named here counts by its volatility: immutable ones are harmless, stable ones read the catalogue or the
//! server, and volatile ones are refused.

/// What calling a built-in function means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    /// Its result depends on its arguments and the recorded settings only.
    Pure,
    /// `now()` and `transaction_timestamp()`.
    TransactionTimestamp,
    /// `statement_timestamp()`.
    StatementTimestamp,
    /// Its result depends on the present day through a value that cannot be frozen in place.
    Clock,
    /// It changes from call to call.
    Random,
    NextVal,
    CurrVal,
    LastVal,
    SetVal,
    /// It reads the server, the session or statistics.
    Session,
    /// It reads a setting named by its argument.
    Setting,
    /// It reads the catalogue, whose OIDs differ between replicas.
    Catalogue,
    AdvisoryLock,
    Notify,
    SetConfig,
    Sleep,
    /// It keeps state on one server: exported snapshots, cursors, the seed of `random()`.
    Pins,
    /// It executes text, or reads tables that an argument names at run time.
    ReadsAnything,
    /// It changes something that no item covers or that belongs to one server.
    Refused(&'static str),
    /// Its result depends on the order of rows.
    OrderedAggregate,
    /// Sums, whose rounding depends on the order of rows unless the argument is exact.
    SumAggregate,
    /// It picks one of several equal values.
    PickAggregate,
    /// Its result may be made of OIDs that its arguments hold, such as those of enumerations' labels.
    Oids,
}

impl Behaviour {
    /// Whether a call is replaced by a frozen value.
    pub(crate) fn yields_value(self) -> bool {
        matches!(
            self,
            Behaviour::TransactionTimestamp
                | Behaviour::StatementTimestamp
                | Behaviour::NextVal
                | Behaviour::CurrVal
                | Behaviour::LastVal
        )
    }
}

/// The behaviour of a function of `pg_catalog`, or None if it counts by its volatility.
pub(crate) fn builtin(name: &str, arguments: usize) -> Option<Behaviour> {
    use Behaviour as B;
    Some(match name {
        "now" | "transaction_timestamp" => B::TransactionTimestamp,
        "statement_timestamp" => B::StatementTimestamp,
        "age" if arguments == 1 => B::Clock,
        // Rows are shipped of tables without triggers only, and a text fires the same ones wherever it is executed.
        "pg_trigger_depth" => B::Pure,
        // What is given with its offset is looked at where it stands.
        "timetz" => B::Pure,
        "clock_timestamp" | "timeofday" | "random" | "random_normal" | "gen_random_uuid" | "uuidv4"
        | "uuidv7" | "array_shuffle" | "array_sample" => B::Random,
        "nextval" => B::NextVal,
        "currval" => B::CurrVal,
        "lastval" => B::LastVal,
        "setval" => B::SetVal,
        "set_config" => B::SetConfig,
        "current_setting" => B::Setting,
        "pg_notify" => B::Notify,
        "pg_sleep" | "pg_sleep_for" | "pg_sleep_until" => B::Sleep,
        "setseed" | "pg_export_snapshot" | "cursor_to_xml" | "cursor_to_xmlschema" => B::Pins,
        "query_to_xml"
        | "query_to_xmlschema"
        | "query_to_xml_and_xmlschema"
        | "table_to_xml"
        | "table_to_xmlschema"
        | "table_to_xml_and_xmlschema"
        | "schema_to_xml"
        | "schema_to_xmlschema"
        | "schema_to_xml_and_xmlschema"
        | "database_to_xml"
        | "database_to_xmlschema"
        | "database_to_xml_and_xmlschema"
        | "ts_stat"
        | "ts_rewrite" => B::ReadsAnything,
        "array_agg"
        | "string_agg"
        | "json_agg"
        | "jsonb_agg"
        | "json_object_agg"
        | "jsonb_object_agg"
        | "json_arrayagg"
        | "json_objectagg"
        | "json_agg_strict"
        | "jsonb_agg_strict"
        | "json_object_agg_strict"
        | "json_object_agg_unique"
        | "json_object_agg_unique_strict"
        | "jsonb_object_agg_strict"
        | "jsonb_object_agg_unique"
        | "jsonb_object_agg_unique_strict"
        | "xmlagg"
        | "any_value"
        | "range_agg"
        | "row_number"
        | "ntile"
        | "lag"
        | "lead"
        | "first_value"
        | "last_value"
        | "nth_value"
        | "mode" => B::OrderedAggregate,
        "sum" | "avg" | "stddev" | "stddev_pop" | "stddev_samp" | "variance" | "var_pop" | "var_samp"
        | "corr" | "covar_pop" | "covar_samp" | "regr_avgx" | "regr_avgy" | "regr_count"
        | "regr_intercept" | "regr_r2" | "regr_slope" | "regr_sxx" | "regr_sxy" | "regr_syy" => {
            B::SumAggregate
        }
        "min" | "max" | "percentile_disc" | "percentile_cont" => B::PickAggregate,
        "count" | "bool_and" | "bool_or" | "every" | "bit_and" | "bit_or" | "bit_xor" | "rank"
        | "dense_rank" | "percent_rank" | "cume_dist" => B::Pure,
        "pg_backend_pid"
        | "inet_client_addr"
        | "inet_client_port"
        | "inet_server_addr"
        | "inet_server_port"
        | "version"
        | "current_query"
        | "current_database"
        | "session_user"
        | "getpgusername"
        | "pg_postmaster_start_time"
        | "pg_conf_load_time"
        | "txid_current"
        | "txid_current_if_assigned"
        | "txid_current_snapshot"
        | "pg_current_xact_id"
        | "pg_current_xact_id_if_assigned"
        | "pg_current_snapshot"
        | "txid_status"
        | "pg_xact_status"
        | "pg_is_in_recovery"
        | "pg_blocking_pids"
        | "pg_safe_snapshot_blocking_pids"
        | "pg_jit_available"
        | "pg_current_logfile"
        | "pg_lock_status"
        | "pg_sequence_last_value"
        | "pg_listening_channels"
        | "pg_notification_queue_usage" => B::Session,
        "pg_read_file" | "pg_read_file_old" | "pg_read_binary_file" | "pg_stat_file" | "pg_ls_dir" => {
            B::Session
        }
        "currtid2" => B::Session,
        "hashenum"
        | "hashenumextended"
        | "hash_array"
        | "hash_array_extended"
        | "hash_record"
        | "hash_record_extended"
        | "hash_range"
        | "hash_range_extended"
        | "hash_multirange"
        | "hash_multirange_extended"
        | "satisfies_hash_partition"
        | "pg_typeof" => B::Oids,
        _ => return by_prefix(name).or_else(|| pure_stable(name).then_some(B::Pure)),
    })
}

/// Whole families of functions.
fn by_prefix(name: &str) -> Option<Behaviour> {
    use Behaviour as B;
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(s));
    if starts(&["pg_advisory_", "pg_try_advisory_"]) {
        return Some(B::AdvisoryLock);
    }
    if starts(&["lo_", "lowrite", "loread"]) {
        return Some(B::Refused("large objects are not replicated"));
    }
    if starts(&["pg_stat_reset", "pg_stat_clear", "pg_stat_force"]) || name == "pg_stat_statements_reset" {
        return Some(B::Refused("statistics belong to one server"));
    }
    if starts(&[
        "pg_stat_",
        "pg_ls_",
        "pg_control_",
        "pg_last_",
        "pg_current_wal",
        "pg_get_wal",
        "pg_wal_lsn",
    ]) || ends(&["_size"])
    {
        return Some(B::Session);
    }
    if starts(&[
        "pg_cancel_",
        "pg_terminate_",
        "pg_reload_",
        "pg_rotate_",
        "pg_switch_",
        "pg_wal_replay_",
        "pg_promote",
        "pg_create_",
        "pg_drop_",
        "pg_copy_",
        "pg_replication_origin_",
        "pg_replication_slot_",
        "pg_logical_",
        "pg_backup_",
        "pg_start_backup",
        "pg_stop_backup",
        "pg_log_",
        "pg_import_",
        "binary_upgrade_",
        "brin_desummarize_",
        "brin_summarize_",
        "gin_clean_",
        "pg_nextoid",
        "pg_restore_",
        "pg_clear_",
    ]) {
        return Some(B::Refused("it acts on one server"));
    }
    let about_catalogue = starts(&["pg_", "has_", "to_reg", "row_security_active"])
        || ends(&["_description"])
        || matches!(name, "format_type" | "current_schemas" | "current_schema" | "oidvectortypes");
    let pure = matches!(name, "pg_column_size" | "pg_client_encoding" | "pg_size_pretty" | "pg_size_bytes");
    (about_catalogue && !pure).then_some(B::Catalogue)
}

/// Stable functions whose result is fixed by their arguments and the recorded settings: conversions of dates and
/// times (TimeZone, DateStyle), of text and JSON, and the default text search configuration.
fn pure_stable(name: &str) -> bool {
    matches!(
        name,
        "age"
            | "concat"
            | "concat_ws"
            | "convert"
            | "convert_from"
            | "convert_to"
            | "date"
            | "date_part"
            | "date_trunc"
            | "date_add"
            | "date_subtract"
            | "extract"
            | "enum_first"
            | "enum_last"
            | "enum_range"
            | "format"
            | "generate_series"
            | "array_to_json"
            | "array_to_string"
            | "json_build_array"
            | "json_build_object"
            | "jsonb_build_array"
            | "jsonb_build_object"
            | "json_populate_record"
            | "json_populate_recordset"
            | "jsonb_populate_record"
            | "jsonb_populate_recordset"
            | "json_to_record"
            | "json_to_recordset"
            | "jsonb_to_record"
            | "jsonb_to_recordset"
            | "jsonb_path_exists_tz"
            | "jsonb_path_match_tz"
            | "jsonb_path_query_tz"
            | "jsonb_path_query_array_tz"
            | "jsonb_path_query_first_tz"
            | "json_to_tsvector"
            | "jsonb_to_tsvector"
            | "length"
            | "make_timestamptz"
            | "money"
            | "numeric"
            | "overlaps"
            | "phraseto_tsquery"
            | "plainto_tsquery"
            | "websearch_to_tsquery"
            | "to_tsquery"
            | "to_tsvector"
            | "ts_headline"
            | "ts_match_tq"
            | "ts_match_tt"
            | "ts_debug"
            | "ts_parse"
            | "quote_literal"
            | "quote_nullable"
            | "row_to_json"
            | "time"
            | "timestamp"
            | "timestamptz"
            | "timezone"
            | "to_char"
            | "to_date"
            | "to_json"
            | "to_jsonb"
            | "to_number"
            | "to_timestamp"
            | "xml"
            | "xml_is_well_formed"
            | "pg_column_size"
            | "pg_client_encoding"
            | "pg_size_pretty"
            | "pg_size_bytes"
            | "current_user"
            | "tsvector_update_trigger"
            | "tsvector_update_trigger_column"
            | "suppress_redundant_updates_trigger"
            | "bernoulli"
            | "system"
    )
}

/// Helpers of PostgreSQL's information schema. They read the catalogue at most, and drivers call them by themselves.
pub(crate) fn is_of_information_schema(name: &str) -> bool {
    matches!(
        name,
        "_pg_char_max_length"
            | "_pg_char_octet_length"
            | "_pg_datetime_precision"
            | "_pg_expandarray"
            | "_pg_index_position"
            | "_pg_interval_type"
            | "_pg_numeric_precision"
            | "_pg_numeric_precision_radix"
            | "_pg_numeric_scale"
            | "_pg_truetypid"
            | "_pg_truetypmod"
    )
}

/// Settings that a statement's result may depend on and that its record must carry, beside role and search_path.
pub const ENVIRONMENT_SETTINGS: &[&str] = &[
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "xmlbinary",
    "xmloption",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "default_text_search_config",
    "transform_null_equals",
    "array_nulls",
    "quote_all_identifiers",
    "timezone_abbreviations",
    "row_security",
    "session_replication_role",
    "check_function_bodies",
    "default_tablespace",
    "default_table_access_method",
    "default_toast_compression",
    "standard_conforming_strings",
    "escape_string_warning",
    "gin_fuzzy_search_limit",
];
