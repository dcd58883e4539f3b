//! A client that can send anything: the protocol by hand over a blocking socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use tokio_postgres::config::Host;

use crate::{Error, Result};

/// Where the server is and who may enter.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) password: Option<Vec<u8>>,
    /// How long an answer may take.
    pub(super) patience: Duration,
    /// How long silence is listened to where an answer need not come.
    pub(super) pause: Duration,
    /// The longest statement that the server takes, if it has a limit of its own.
    pub(super) statement_max_bytes: Option<usize>,
}

impl Door {
    pub(super) fn of(config: &tokio_postgres::Config, patience: Duration) -> Result<Door> {
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            None => "localhost".to_owned(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => {
                let why =
                    format!("bad input is sent over TCP: give a host name instead of {}", path.display());
                return Err(Error::Option(why));
            }
        };
        let user = config.get_user().unwrap_or("postgres").to_owned();
        Ok(Door {
            host,
            port: config.get_ports().first().copied().unwrap_or(5432),
            database: config.get_dbname().unwrap_or(&user).to_owned(),
            user,
            password: config.get_password().map(<[u8]>::to_vec),
            patience,
            pause: Duration::from_millis(300),
            statement_max_bytes: None,
        })
    }

    /// A connection on which nothing has been said.
    pub(super) fn knock(&self) -> io::Result<Raw> {
        let addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        let mut last = io::Error::other("the host name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, self.patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(self.patience))?;
                    return Ok(Raw { stream, patience: self.patience });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The startup message of an honest client.
    pub(super) fn startup(&self) -> Vec<u8> {
        startup(
            PROTOCOL_3,
            &[("user", &self.user), ("database", &self.database), ("application_name", "bad input")],
        )
    }

    /// A connection that has been let in and awaits statements.
    pub(super) fn enter(&self) -> std::result::Result<Raw, String> {
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |error: io::Error| format!("{doing}: {error}")
        };
        let mut raw = self.knock().map_err(failed("connect"))?;
        raw.send(&self.startup()).map_err(failed("send startup"))?;
        let password = self.password.clone().unwrap_or_default();
        let seen = raw.authenticate(&self.user, &password).map_err(failed("authenticate"))?;
        match seen.end {
            End::Ready => Ok(raw),
            _ => Err(format!("an honest client was not let in: {seen:?}")),
        }
    }
}

/// Version 3.0 of the protocol.
pub(super) const PROTOCOL_3: u32 = 3 << 16;

/// A startup packet.
pub(super) fn startup(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    for (name, value) in parameters {
        body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    body.push(0);
    untagged(&body)
}

/// A packet without a tag, as before authentication.
pub(super) fn untagged(body: &[u8]) -> Vec<u8> {
    [&length(body.len() + 4)[..], body].concat()
}

/// A message with its tag and length.
pub(super) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &length(body.len() + 4), body].concat()
}

/// A message that lies about its length.
pub(super) fn lying(tag: u8, said: u32, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &said.to_be_bytes(), body].concat()
}

pub(super) fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

/// Parse, without parameter types.
pub(super) fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0", &[0, 0]].concat())
}

/// Bind with parameters in text form.
pub(super) fn bind(portal: &str, statement: &str, parameters: &[&str]) -> Vec<u8> {
    let mut body = [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0", &[0, 0]].concat();
    body.extend(u16::try_from(parameters.len()).unwrap_or(u16::MAX).to_be_bytes());
    for parameter in parameters {
        body.extend(length(parameter.len()));
        body.extend(parameter.as_bytes());
    }
    body.extend([0, 0]);
    message(b'B', &body)
}

pub(super) fn execute(portal: &str, rows_max: u32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows_max.to_be_bytes()].concat())
}

pub(super) fn sync() -> Vec<u8> {
    message(b'S', &[])
}

pub(super) fn flush() -> Vec<u8> {
    message(b'H', &[])
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// What came until nothing more came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// SQLSTATEs of errors, in order.
    pub(super) codes: Vec<String>,
    /// Tags of all messages, in order, rows and data once each.
    pub(super) tags: String,
    pub(super) end: End,
}

/// Why nothing more was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server closed the connection.
    Closed,
    /// The server awaits the next statement.
    Ready,
    /// The server awaits data of a COPY.
    CopyIn,
    /// The server said nothing for as long as patience lasted.
    Silent,
    /// The server asked for a password, and none was given.
    AsksPassword,
    /// The server sent something that is no message.
    Garbage,
}

/// A connection.
pub(super) struct Raw {
    stream: TcpStream,
    patience: Duration,
}

impl Raw {
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Closes the connection at once. If something was left unread, the other side is told that it broke.
    pub(super) fn vanish(self) {
        // A connection that is gone already cannot be shut down.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Reads a few bytes, to be sure that an answer has begun.
    pub(super) fn taste(&mut self) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.patience))?;
        self.stream.read(&mut [0; 64])
    }

    /// Looks at the next byte and leaves it there.
    pub(super) fn peek(&mut self) -> io::Result<u8> {
        self.stream.set_read_timeout(Some(self.patience))?;
        let mut byte = [0];
        match self.stream.peek(&mut byte)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(byte[0]),
        }
    }

    /// Reads one byte, as the answer to a request for encryption is.
    pub(super) fn byte(&mut self) -> io::Result<u8> {
        self.stream.set_read_timeout(Some(self.patience))?;
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Sends an honest query and reads its answer.
    pub(super) fn ask(&mut self, sql: &str) -> std::result::Result<Seen, String> {
        // If the connection is gone, that is what is seen.
        let _ = self.send(&query(sql));
        Ok(self.until_over(self.patience))
    }

    /// Reads until the server awaits something, has closed the connection or is silent for long.
    pub(super) fn until_over(&mut self, patience: Duration) -> Seen {
        let mut seen = Seen { codes: Vec::new(), tags: String::new(), end: End::Silent };
        let until = Instant::now() + patience;
        loop {
            let (tag, body) = match self.read_message(until) {
                Ok(message) => message,
                Err(error) => {
                    seen.end = match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => End::Silent,
                        io::ErrorKind::InvalidData => End::Garbage,
                        _ => End::Closed,
                    };
                    return seen;
                }
            };
            if !(matches!(tag, b'D' | b'd') && seen.tags.ends_with(char::from(tag))) {
                seen.tags.push(char::from(tag));
            }
            match tag {
                b'E' => seen.codes.push(field(&body, b'C').unwrap_or_else(|| "no SQLSTATE".to_owned())),
                b'Z' => seen.end = End::Ready,
                b'G' => seen.end = End::CopyIn,
                b'R' if body.get(..4) != Some(&[0, 0, 0, 0]) => seen.end = End::AsksPassword,
                _ => continue,
            }
            if seen.end != End::Silent {
                return seen;
            }
        }
    }

    /// Gives the password in the way that the server asks for, until the server is ready or refuses.
    pub(super) fn authenticate(&mut self, user: &str, password: &[u8]) -> io::Result<Seen> {
        let until = Instant::now() + self.patience;
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        loop {
            let (tag, body) = match self.read_message(until) {
                Ok(message) => message,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Seen { codes: Vec::new(), tags: String::new(), end: End::Closed });
                }
                Err(error) => return Err(error),
            };
            let method =
                u32::from_be_bytes(body.get(..4).and_then(|four| four.try_into().ok()).unwrap_or_default());
            match (tag, method) {
                (b'R', 0) => return Ok(self.until_over(self.patience)),
                (b'R', 3) => self.send(&message(b'p', &[password, b"\0"].concat()))?,
                (b'R', 5) => {
                    let salt = body.get(4..8).and_then(|four| four.try_into().ok()).unwrap_or_default();
                    let hash = md5_hash(user.as_bytes(), password, salt);
                    self.send(&message(b'p', &[hash.as_bytes(), b"\0"].concat()))?;
                }
                (b'R', 10) => {
                    let first = scram.message().to_vec();
                    let body = [b"SCRAM-SHA-256\0", &length(first.len())[..], &first].concat();
                    self.send(&message(b'p', &body))?;
                }
                (b'R', 11) => {
                    scram.update(body.get(4..).unwrap_or_default())?;
                    let answer = scram.message().to_vec();
                    self.send(&message(b'p', &answer))?;
                }
                (b'R', 12) => scram.finish(body.get(4..).unwrap_or_default())?,
                (b'R', other) => {
                    return Err(io::Error::other(format!("authentication method {other} is not known")));
                }
                (b'E', _) => {
                    let code = field(&body, b'C').unwrap_or_else(|| "no SQLSTATE".to_owned());
                    let mut rest = self.until_over(self.patience);
                    rest.codes.insert(0, code);
                    return Ok(rest);
                }
                _ => {}
            }
        }
    }

    fn read_message(&mut self, until: Instant) -> io::Result<(u8, Vec<u8>)> {
        /// No answer to anything here is longer.
        const LENGTH_MAX: usize = 16 << 20;
        let mut head = [0; 5];
        self.read_until(&mut head, until)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..=LENGTH_MAX).contains(&length) || !head[0].is_ascii_alphanumeric() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{head:?} begins no message")));
        }
        let mut body = vec![0; length - 4];
        self.read_until(&mut body, until)?;
        Ok((head[0], body))
    }

    fn read_until(&mut self, buffer: &mut [u8], until: Instant) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A field of an error.
fn field(body: &[u8], name: u8) -> Option<String> {
    let fields = body.split(|byte| *byte == 0).filter(|field| field.first() == Some(&name));
    fields.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).next()
}
