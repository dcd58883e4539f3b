//! SELECT of nothing but calls of advisory locks and `pg_notify`.

use super::Analyser;
use super::expr::At;
use super::freeze::closing;
use crate::ast::{Body, Call, Distinct, Expr, Query, Target};
use crate::class::Kind;
use crate::lexer::{Position, Token, TokenKind};
use crate::session_calls::{SessionCall, SessionFunction};

impl<'a> Analyser<'a> {
    /// `SELECT pg_advisory_lock(1) [AS name] [, ...]`, and nothing else in it.
    pub(super) fn session_calls(&mut self, query: &'a Query) -> Option<Kind> {
        let Body::Select(select) = &query.body else { return None };
        let plain = select.distinct == Distinct::None
            && !select.targets.is_empty()
            && select.from.is_empty()
            && select.filter.is_none()
            && select.group_by.is_empty()
            && !select.grouping_sets
            && select.having.is_none()
            && select.windows.is_empty()
            && query.with.is_none()
            && query.order_by.is_empty()
            && query.limit.is_none()
            && query.offset.is_none()
            && query.locking.is_empty();
        if !plain {
            return None;
        }
        let tokens = self.tokens();
        let calls: Option<Vec<(SessionCall, &'a Call)>> =
            select.targets.iter().map(|target| self.session_call(target, &tokens)).collect();
        let calls = calls?;
        let scope = self.new_scope(None, None, false);
        for (call, written) in &calls {
            match call.function {
                SessionFunction::Notify => self.effects.notifies = true,
                _ => self.effects.advisory_locks = true,
            }
            written.arguments.iter().for_each(|e| self.expr(e, At::new(scope, true)));
        }
        Some(Kind::SessionCalls(calls.into_iter().map(|(call, _)| call).collect()))
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
