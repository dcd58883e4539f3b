//! SELECT of nothing but calls of advisory locks and `pg_notify`, or of `set_config` and `current_setting`.

use super::Analyser;
use super::block::QueryUse;
use super::expr::At;
use super::freeze::closing;
use crate::ast::{Body, Call, Distinct, Expr, Query, Target};
use crate::class::Kind;
use crate::lexer::{Position, Token, TokenKind};
use crate::session_calls::{CallRows, SessionCall, SessionFunction};

impl<'a> Analyser<'a> {
    /// `SELECT pg_advisory_lock(1) [AS name] [, ...]`, and nothing else in it.
    pub(super) fn session_calls(&mut self, query: &'a Query) -> Option<Kind> {
        let Body::Select(select) = &query.body else { return None };
        let simple = select.distinct == Distinct::None
            && !select.targets.is_empty()
            && select.group_by.is_empty()
            && !select.grouping_sets
            && select.having.is_none()
            && select.windows.is_empty()
            && query.with.is_none()
            && query.locking.is_empty();
        if !simple {
            return None;
        }
        let plain = select.from.is_empty()
            && select.filter.is_none()
            && query.order_by.is_empty()
            && query.limit.is_none()
            && query.offset.is_none();
        let tokens = self.tokens();
        let calls: Option<Vec<(SessionCall, &'a Call)>> =
            select.targets.iter().map(|target| self.session_call(target, &tokens)).collect();
        let calls = calls?;
        let sets = |call: &(SessionCall, &Call)| call.0.function == SessionFunction::SetConfig;
        let shows = |call: &(SessionCall, &Call)| call.0.function == SessionFunction::CurrentSetting;
        let of_settings = calls.iter().all(|call| sets(call) || shows(call));
        let any_set = calls.iter().any(sets);
        // What only shows settings is a query like any other.
        let mixed = any_set != of_settings || !of_settings && calls.iter().any(shows);
        if mixed {
            return None;
        }
        if !plain {
            let all_set = calls.iter().all(sets);
            return if all_set { self.settings_of_rows(query, calls, &tokens) } else { None };
        }
        let scope = self.new_scope(None, None, false);
        for (call, written) in &calls {
            match call.function {
                SessionFunction::Notify => self.effects.notifies = true,
                // Said below.
                SessionFunction::SetConfig | SessionFunction::CurrentSetting => {
                    self.effects.returns_rows = true;
                }
                _ => self.effects.advisory_locks = true,
            }
            written.arguments.iter().for_each(|e| self.expr(e, At::new(scope, true)));
        }
        let nested = self.effects.sets_config || self.effects.sets_custom_locally;
        if of_settings && nested {
            return None;
        }
        self.effects.sets_config |= of_settings;
        let calls = calls.into_iter().map(|(call, _)| call).collect();
        Some(match of_settings {
            true => Kind::SetConfig { calls, rows: None },
            false => Kind::SessionCalls(calls),
        })
    }

    /// `SELECT set_config(name, 'value', false) FROM ...`: the arguments are the query's columns, and the query itself
    /// must not set anything.
    fn settings_of_rows(
        &mut self,
        query: &'a Query,
        calls: Vec<(SessionCall, &'a Call)>,
        tokens: &[Token],
    ) -> Option<Kind> {
        let is_simple = |argument: &Expr| {
            matches!(argument, Expr::Literal { .. } | Expr::Column { star: false, .. } | Expr::Param { .. })
        };
        let simple = calls.iter().all(|(_, call)| call.arguments.iter().all(is_simple));
        let is_word = |token: &Token, word: &str| {
            self.sql.get(token.start..token.end).is_some_and(|text| text.eq_ignore_ascii_case(word))
        };
        let mentions = tokens.iter().filter(|token| {
            is_word(token, "set_config")
                || token.kind == TokenKind::QuotedWord && is_word(token, "\"set_config\"")
        });
        if !simple || mentions.count() != calls.len() {
            return None;
        }
        let last = calls.iter().map(|(_, call)| call.at as usize).max()?;
        let called = tokens.iter().position(|token| token.start >= last)?;
        let from = called
            + tokens
                .get(called..)?
                .iter()
                .position(|token| token.kind == TokenKind::Word && is_word(token, "from"))?;
        let rows = CallRows {
            start: self.position_of(tokens.get(from)?.start)?,
            end: self.position_of(tokens.last()?.end)?,
        };
        self.query(query, None, None, QueryUse::top());
        // The calls themselves, as was counted.
        self.effects.sets_config = true;
        self.effects.sets_custom_locally = false;
        let calls = calls.into_iter().map(|(call, _)| call).collect();
        Some(Kind::SetConfig { calls, rows: Some(rows) })
    }

    fn session_call(&self, target: &'a Target, tokens: &[Token]) -> Option<(SessionCall, &'a Call)> {
        let Expr::Call(call) = &target.value else { return None };
        let plain = matches!(call.name.schema(), None | Some("pg_catalog"))
            && call.name.parts.len() <= 2
            && !call.named
            && !call.star
            && !call.distinct
            && call.order_by.is_empty()
            && !call.within_group
            && call.filter.is_none()
            && call.over.is_none();
        let function = SessionFunction::of(call.name.last(), call.arguments.len()).filter(|_| plain)?;
        let arguments = self.argument_places(call, tokens)?;
        if arguments.len() != call.arguments.len() {
            return None;
        }
        let column = target.name.clone().unwrap_or_else(|| call.name.last().to_owned());
        Some((SessionCall { function, column, arguments }, call))
    }

    /// Where a call's arguments begin and end.
    fn argument_places(&self, call: &Call, tokens: &[Token]) -> Option<Vec<(Position, Position)>> {
        let mut open = tokens.iter().position(|t| t.start == call.at as usize)?;
        while tokens.get(open)?.kind != TokenKind::Byte(b'(') {
            open += 1;
        }
        let close = closing(tokens, open)?;
        let mut places = Vec::with_capacity(call.arguments.len());
        let mut first = open + 1;
        let mut at = first;
        while at <= close {
            match tokens[at].kind {
                TokenKind::Byte(b'(' | b'[') => at = closing(tokens, at)?,
                TokenKind::Byte(b',') => {
                    places.push((first, at));
                    first = at + 1;
                }
                _ if at == close && first < close => places.push((first, close)),
                _ => {}
            }
            at += 1;
        }
        let place = |(first, after): (usize, usize)| {
            let (start, end) = (tokens.get(first)?.start, tokens.get(after.checked_sub(1)?)?.end);
            Some((self.position_of(start)?, self.position_of(end)?))
        };
        places.into_iter().map(place).collect()
    }

    fn position_of(&self, offset: usize) -> Option<Position> {
        Some(self.layout.position(u32::try_from(offset).ok()?))
    }
}
