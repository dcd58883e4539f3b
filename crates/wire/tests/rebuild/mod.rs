//! Builds a decoded message again. Where that gives other bytes than were decoded, decoder and builder disagree
//! about what the message says, or the decoder overlooks something that a server would see. Shared with the fuzz
//! targets.

use bytes::BytesMut;
use onecopy_wire::backend::{self, Authentication, Backend, CopyFormat};
use onecopy_wire::frontend::{self, Frontend};
use onecopy_wire::{Values, WireError};

/// Appends the same message of a client. `false` where there is no builder.
pub fn client(message: &Frontend<'_>, out: &mut BytesMut) -> Result<bool, WireError> {
    use frontend::build;
    match message {
        Frontend::Query(sql) => build::query(out, sql)?,
        Frontend::Parse(parse) => build::parse(out, parse.name, parse.sql, parse.types.iter())?,
        // No builder takes formats that there are not. Such messages are only passed on.
        Frontend::Bind(bind) if bind.param_formats.unknown().or(bind.result_formats.unknown()).is_some() => {
            bind.rewrite(bind.portal, bind.statement, &[], out)?;
        }
        Frontend::Bind(bind) => build::bind(
            out,
            bind.portal,
            bind.statement,
            bind.param_formats.iter(),
            bind.params,
            bind.result_formats.iter(),
        )?,
        Frontend::Describe(named) => build::describe(out, named.target, named.name)?,
        Frontend::Close(named) => build::close(out, named.target, named.name)?,
        Frontend::Execute(execute) => build::execute(out, execute.portal, execute.max_rows)?,
        Frontend::Flush => build::flush(out),
        Frontend::Sync => build::sync(out),
        Frontend::CopyData(data) => build::copy_data(out, data)?,
        Frontend::CopyDone => build::copy_done(out),
        Frontend::CopyFail(reason) => build::copy_fail(out, reason),
        Frontend::Password(body) => build::sasl_response(out, body.0)?,
        Frontend::Terminate => build::terminate(out),
        Frontend::FunctionCall(_) => return Ok(false),
    }
    Ok(true)
}

/// Appends the same message of a server. `false` where there is no builder, or where decoding loses something on
/// purpose: fields of an error that are unknown, bytes that are not UTF-8, texts above 64 KiB.
pub fn server(message: &Backend<'_>, out: &mut BytesMut) -> Result<bool, WireError> {
    use backend::build;
    match message {
        Backend::Authentication(request) => return authentication(request, out),
        Backend::BackendKeyData(key) => build::backend_key_data(out, key.pid, key.key)?,
        Backend::BindComplete => build::bind_complete(out),
        Backend::CloseComplete => build::close_complete(out),
        Backend::CommandComplete(tag) => build::command_complete(out, tag),
        Backend::CopyData(data) => build::copy_data(out, data)?,
        Backend::CopyDone => build::copy_done(out),
        Backend::CopyIn(format) if is_uniform(format) => {
            build::copy_in_response(out, format.overall, format.columns.len() as u16);
        }
        Backend::CopyOut(format) if is_uniform(format) => {
            build::copy_out_response(out, format.overall, format.columns.len() as u16);
        }
        Backend::DataRow(values) => build::data_row(out, values.iter())?,
        Backend::EmptyQuery => build::empty_query_response(out),
        Backend::NegotiateProtocolVersion(answer) => {
            build::negotiate_protocol_version(out, answer.version, &answer.unknown().collect::<Vec<_>>());
        }
        Backend::NoData => build::no_data(out),
        Backend::Notification(notification) => {
            let (channel, payload) = (&notification.channel, &notification.payload);
            build::notification(out, notification.pid, channel, payload);
            return Ok(!channel.contains('\u{fffd}') && !payload.contains('\u{fffd}'));
        }
        Backend::ParameterDescription(types) => build::parameter_description(out, types.iter())?,
        Backend::ParameterStatus(status) => {
            build::parameter_status(out, status.name, &status.value);
            return Ok(!status.value.contains('\u{fffd}'));
        }
        Backend::ParseComplete => build::parse_complete(out),
        Backend::PortalSuspended => build::portal_suspended(out),
        Backend::ReadyForQuery(status) => build::ready_for_query(out, *status),
        Backend::RowDescription(columns) => build::row_description(out, columns.iter())?,
        Backend::CopyIn(_)
        | Backend::CopyOut(_)
        | Backend::CopyBoth(_)
        | Backend::Error(_)
        | Backend::Notice(_)
        | Backend::FunctionCallResponse(_) => return Ok(false),
    }
    Ok(true)
}

fn authentication(request: &Authentication<'_>, out: &mut BytesMut) -> Result<bool, WireError> {
    use backend::build;
    match request {
        Authentication::Ok => build::authentication_ok(out),
        Authentication::CleartextPassword => build::authentication_cleartext_password(out),
        Authentication::Sasl(mechanisms) => {
            build::authentication_sasl(out, &mechanisms.iter().collect::<Vec<_>>());
        }
        Authentication::SaslContinue(data) => build::authentication_sasl_continue(out, data)?,
        Authentication::SaslFinal(data) => build::authentication_sasl_final(out, data)?,
        Authentication::Md5Password { .. } | Authentication::Unsupported { .. } => return Ok(false),
    }
    Ok(true)
}

fn is_uniform(format: &CopyFormat<'_>) -> bool {
    format.columns.iter().all(|column| column == format.overall)
}

/// The first `keep` of a row's values.
pub fn first_values<'a>(values: &Values<'a>, keep: usize) -> Vec<Option<&'a [u8]>> {
    values.iter().take(keep).collect()
}
