//! The client's connection: bytes in, bytes out, bounded.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use onecopy_core::Epoch;
use onecopy_log::Member;
use onecopy_wire::{FrameError, Head, frontend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::stream::Stream;

/// Bytes asked for in one read.
const READ_LEN: usize = 16 * 1024;
/// Bytes of answers that are sent on before the statement is complete.
pub const SEND_LEN: usize = 64 * 1024;

/// Why a client is not talked to any more.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the client closed the connection")]
    Gone,
    #[error("the connection to the client was lost: {0}")]
    Lost(#[from] io::Error),
    #[error("the client broke the protocol: {0}")]
    Protocol(String),
    #[error("the client sent too much at once: {0}")]
    TooLarge(String),
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> ClientError {
        match error {
            FrameError::TooLong { .. } => ClientError::TooLarge(error.to_string()),
            _ => ClientError::Protocol(error.to_string()),
        }
    }
}

impl From<onecopy_wire::WireError> for ClientError {
    fn from(error: onecopy_wire::WireError) -> ClientError {
        ClientError::Protocol(error.to_string())
    }
}

/// A client's connection after startup.
pub struct Client {
    stream: Stream,
    pub input: BytesMut,
    pub output: BytesMut,
    /// Bytes sent since the start: what has left cannot be taken back.
    pub sent: u64,
    /// The output, sent or not, ends in the middle of a message, so nothing but its rest may follow.
    pub mid_message: bool,
    /// Answers are held up to so many bytes, since what they answer may have to be done again; 0: they are sent as they come.
    pub hold_max: usize,
    /// A front is the client, which may say more than clients may.
    pub is_carried: bool,
    /// Where there are several nodes: answers wait until it is sure that this one still led when they were asked for.
    pub gate: Option<Gate>,
    message_len_max: usize,
}

/// Asks a majority of the nodes whether this one still leads, for whoever is to be answered (docs/nodes.md, "Fencing").
pub struct Gate {
    member: Arc<Member>,
    epoch: Epoch,
    /// It was asked since something was received last. The answer is waited for only when something is to be sent.
    is_asked: bool,
    /// That answer, while it is not there.
    asked: Option<oneshot::Receiver<()>>,
    /// What is to be sent may be what only a leader may say.
    is_needed: bool,
    /// Requests whose answers are to be sent, and nothing else is, or has been said before them: `None` if that is not so.
    requests: Option<u32>,
    /// Another node leads, or the log has stopped: nothing is sent any more.
    is_shut: bool,
}

impl Gate {
    /// For answers that are given in this epoch.
    pub fn new(member: &Arc<Member>, epoch: Epoch) -> Gate {
        Gate {
            member: member.clone(),
            epoch,
            is_asked: false,
            asked: None,
            is_needed: true,
            requests: None,
            is_shut: false,
        }
    }

    fn ask(&mut self) {
        if self.is_asked {
            return;
        }
        let (tell, told) = oneshot::channel();
        // Whoever has left does not wait.
        self.member.confirm_leads(self.epoch, Box::new(move |_| tell.send(()).unwrap_or(())));
        (self.is_asked, self.asked) = (true, Some(told));
    }

    async fn opens(&mut self) -> Result<(), ClientError> {
        if self.is_needed {
            self.ask();
            if let Some(asked) = &mut self.asked {
                self.is_shut |= asked.await.is_err();
                self.asked = None;
            }
        }
        // Until it is known what is said next.
        (self.is_needed, self.requests) = (true, None);
        if self.is_shut { Err(ClientError::Gone) } else { Ok(()) }
    }
}

impl Client {
    pub fn new(stream: Stream, input: BytesMut, message_len_max: usize) -> Client {
        let output = BytesMut::with_capacity(READ_LEN);
        Client {
            stream,
            input,
            output,
            sent: 0,
            mid_message: false,
            hold_max: 0,
            is_carried: false,
            gate: None,
            message_len_max,
        }
    }

    /// The connection, what was received and not taken, and what is to be sent.
    pub fn into_parts(self) -> (Stream, BytesMut, BytesMut) {
        (self.stream, self.input, self.output)
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// A request is about to be answered. It is `settled` if the log decides later whether what is said now was true: in a
    /// transaction that has written.
    pub fn request_begins(&mut self, settled: bool) {
        let Some(gate) = &mut self.gate else { return };
        if self.output.is_empty() && gate.requests.is_none() {
            (gate.is_needed, gate.requests) = (false, Some(0));
        }
        gate.requests = gate.requests.map(|requests| requests + 1);
        gate.is_needed |= !settled;
    }

    /// What is about to be asked of a replica is answered only if this node still leads: so that is asked meanwhile.
    pub fn begin_to_confirm(&mut self) {
        if let Some(gate) = self.gate.as_mut().filter(|gate| gate.is_needed) {
            gate.ask();
        }
    }

    /// Something is said that only a leader may say, whatever else is said beside it.
    pub fn must_confirm(&mut self) {
        if let Some(gate) = &mut self.gate {
            (gate.is_needed, gate.requests) = (true, None);
        }
    }

    /// The log has decided what is answered now, or nothing is said that others could contradict: if that is all that is said, it is
    /// true whoever leads.
    pub fn need_not_confirm(&mut self) {
        if let Some(gate) = &mut self.gate {
            gate.is_needed &= gate.requests != Some(1);
        }
    }

    /// Sends all answers so far.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        if !self.output.is_empty() {
            if let Some(gate) = &mut self.gate {
                gate.opens().await?;
            }
            self.sent += self.output.len() as u64;
            self.stream.write_all_buf(&mut self.output).await?;
            if self.output.capacity() > 4 * SEND_LEN {
                self.output = BytesMut::with_capacity(READ_LEN);
            }
        }
        if matches!(self.stream, Stream::Tls(_)) {
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Receives more.
    pub async fn fill(&mut self) -> Result<(), ClientError> {
        self.input.reserve(READ_LEN / 4);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(ClientError::Gone),
            _ => {
                if let Some(gate) = &mut self.gate {
                    gate.is_asked = false;
                }
                Ok(())
            }
        }
    }

    /// Whether reading ahead while a statement is under way is still within bounds.
    pub fn may_read_ahead(&self) -> bool {
        self.input.len() < self.message_len_max
    }

    /// The head of the next message if all of it is there.
    pub fn peek(&self) -> Result<Option<Head>, ClientError> {
        let head = match self.is_carried {
            true => frontend::peek_carried(&self.input, self.message_len_max)?,
            false => frontend::peek(&self.input, self.message_len_max)?,
        };
        Ok(head.filter(|head| self.input.len() >= head.len))
    }

    /// Waits until the next message is there whole, and returns its head.
    pub async fn arrives(&mut self) -> Result<Head, ClientError> {
        loop {
            if let Some(head) = self.peek()? {
                return Ok(head);
            }
            self.flush().await?;
            self.fill().await?;
        }
    }

    /// The next complete message, cut out of the input.
    pub async fn next(&mut self) -> Result<(u8, BytesMut), ClientError> {
        let head = self.arrives().await?;
        let mut frame = self.input.split_to(head.len);
        frame.advance(onecopy_wire::frame::HEAD_LEN);
        Ok((head.tag, frame))
    }

    /// Ends the connection after sending what is left.
    pub async fn close(mut self) {
        let _ = self.flush().await;
        let _ = self.stream.shutdown().await;
    }
}
