//! Messages of a running command, on standard error.

use crate::config::{Level, MessageFormat, Messages};
use std::env;
use std::io::{self, IsTerminal};
use tracing::Level as TracingLevel;
use tracing_subscriber::EnvFilter;

/// Sends messages to standard error from now on. The variable ONECOPY_LOG, if set, replaces the level; it takes what
/// `tracing_subscriber::EnvFilter` does, such as `info,onecopy_runtime::agent=debug`.
///
/// Only the first call in a process has an effect.
pub fn init(messages: &Messages) {
    let level = match messages.level {
        Level::Error => TracingLevel::ERROR,
        Level::Warn => TracingLevel::WARN,
        Level::Info => TracingLevel::INFO,
        Level::Debug => TracingLevel::DEBUG,
    };
    let given = EnvFilter::try_from_env("ONECOPY_LOG").ok();
    let filter = given.unwrap_or_else(|| EnvFilter::new(level.to_string()));
    // Colours are for people: in a file or a journal they are noise. See https://no-color.org for the variable.
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && !no_color)
        .with_target(false);
    let outcome = match messages.format {
        MessageFormat::Text => subscriber.try_init(),
        MessageFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    // The only way to fail is to be called twice.
    drop(outcome);
}
