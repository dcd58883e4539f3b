//! Answers that the session gives itself, shaped as the client's messages want them.

use onecopy_wire::backend::build;

use super::Session;
use super::unit::Step;

impl Session {
    /// Answers a command that was carried out here: in the extended protocol, every message up to its Execute too.
    pub(super) fn answer_command(&mut self, extended: bool, command: &str) {
        if extended {
            self.answer_steps();
        }
        build::command_complete(&mut self.client.output, command);
    }

    /// Answers the collected messages for a command that returns one column of text, up to its rows.
    pub(super) fn answer_rows_steps(&mut self, column: &str) {
        self.confirm_parsed(&[]);
        let out = &mut self.client.output;
        for step in self.steps.drain(..) {
            match step {
                Step::Parse(_) => build::parse_complete(out),
                Step::Bind { again: true, .. } | Step::Execute { .. } => {}
                Step::Bind { .. } => build::bind_complete(out),
                Step::DescribeStatement(_) => {
                    let _ = build::parameter_description(out, []);
                    let _ = build::text_row_description(out, &[column]);
                }
                Step::DescribePortal { .. } => {
                    let _ = build::text_row_description(out, &[column]);
                }
                Step::ClosePortal(_) | Step::CloseStatement => build::close_complete(out),
            }
        }
    }

    /// Answers messages that concern no replica.
    pub(super) fn answer_alone(&mut self) {
        self.answer_steps();
    }

    /// Answers the collected messages of the extended protocol for a command that returns no rows.
    pub(super) fn answer_steps(&mut self) {
        self.confirm_parsed(&[]);
        let out = &mut self.client.output;
        for step in self.steps.drain(..) {
            match step {
                Step::Parse(_) => build::parse_complete(out),
                Step::Bind { again: true, .. } | Step::Execute { .. } => {}
                Step::Bind { .. } => build::bind_complete(out),
                Step::DescribeStatement(_) => {
                    // No parameters is a count that always fits.
                    let _ = build::parameter_description(out, []);
                    build::no_data(out);
                }
                Step::DescribePortal { .. } => build::no_data(out),
                Step::ClosePortal(_) | Step::CloseStatement => build::close_complete(out),
            }
        }
    }
}
