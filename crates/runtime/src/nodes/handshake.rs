//! How two nodes convince each other that both know the cluster's secret, which is never sent, before anything else is
//! said. Each proof is over both sides' random bytes and what the connection is for, so none can be used twice or elsewhere.

use std::io;

use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::tls::Binding;
use crate::stream::Stream;

/// Its last byte is the version: in the second one what nodes say about the log is encrypted.
const MAGIC: &[u8; 8] = b"onecopy\x02";
const NONCE_LEN: usize = 16;
const PROOF_LEN: usize = 32;

/// What a connection between nodes is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Messages about the log.
    Log,
    /// One client's session.
    Session,
    /// A client's request to cancel a statement.
    Cancel,
    /// The question what log this is, by a node that is to join.
    Origin,
}

impl Purpose {
    fn byte(self) -> u8 {
        match self {
            Purpose::Log => 1,
            Purpose::Session => 2,
            Purpose::Cancel => 3,
            Purpose::Origin => 4,
        }
    }

    fn of_byte(byte: u8) -> Option<Purpose> {
        let known = [Purpose::Log, Purpose::Session, Purpose::Cancel, Purpose::Origin];
        known.into_iter().find(|purpose| purpose.byte() == byte)
    }
}

/// The side that connects, which is node `from`, to node `to`.
///
/// # Errors
/// The connection, or that the other side does not know the secret.
pub async fn call(stream: &mut Stream, secret: &str, from: u64, to: u64, purpose: Purpose) -> io::Result<()> {
    let ours: [u8; NONCE_LEN] = rand::rng().random();
    let mut hello = MAGIC.to_vec();
    hello.push(purpose.byte());
    hello.extend(from.to_be_bytes());
    hello.extend(to.to_be_bytes());
    hello.extend(ours);
    stream.write_all(&hello).await?;
    let mut answer = [0; NONCE_LEN + PROOF_LEN];
    stream.read_exact(&mut answer).await?;
    let (theirs, proof) = answer.split_at(NONCE_LEN);
    let said = [&hello, theirs].concat();
    check(secret, b"listens", &said, proof)?;
    stream.write_all(&prove(secret, b"calls", &said)).await?;
    stream.flush().await
}

/// The side that listens, which is node `this`. Returns who calls, and what for.
///
/// # Errors
/// The connection, or that the other side is none of the cluster's nodes, or wants another one.
pub async fn answer(stream: &mut Stream, secret: &str, this: u64) -> io::Result<(u64, Purpose)> {
    let mut hello = [0; MAGIC.len() + 1 + 8 + 8 + NONCE_LEN];
    stream.read_exact(&mut hello).await?;
    let (head, _) = hello.split_at(MAGIC.len() + 9);
    let purpose = Purpose::of_byte(head[MAGIC.len()]);
    let (true, Some(purpose)) = (head.starts_with(MAGIC), purpose) else {
        return Err(refused("it speaks another protocol, or another version of this one"));
    };
    let mut from = [0; 8];
    from.copy_from_slice(&head[MAGIC.len() + 1..]);
    if hello[MAGIC.len() + 9..MAGIC.len() + 17] != this.to_be_bytes() {
        return Err(refused(
            "it wants another node than this one; see where cluster.nodes says that they are",
        ));
    }
    let ours: [u8; NONCE_LEN] = rand::rng().random();
    let said = [&hello[..], &ours].concat();
    stream.write_all(&[&ours[..], &prove(secret, b"listens", &said)].concat()).await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    check(secret, b"calls", &said, &proof)?;
    Ok((u64::from_be_bytes(from), purpose))
}

/// Proves on a connection that is encrypted since that both ends of it are those who called and answered, whichever side this is.
///
/// # Errors
/// The connection, or that somebody stands between the two.
pub async fn confirm(stream: &mut Stream, secret: &str, binding: &Binding, calls: bool) -> io::Result<()> {
    let (ours, theirs): (&[u8], &[u8]) = if calls {
        (b"calls encrypted", b"listens encrypted")
    } else {
        (b"listens encrypted", b"calls encrypted")
    };
    stream.write_all(&prove(secret, ours, binding)).await?;
    stream.flush().await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    check(secret, theirs, binding, &proof)
}

fn mac(secret: &str, side: &[u8], said: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length will do");
    mac.update(side);
    mac.update(said);
    mac
}

fn prove(secret: &str, side: &[u8], said: &[u8]) -> [u8; PROOF_LEN] {
    mac(secret, side, said).finalize().into_bytes().into()
}

fn check(secret: &str, side: &[u8], said: &[u8], proof: &[u8]) -> io::Result<()> {
    mac(secret, side, said).verify_slice(proof).map_err(|_| {
        refused("the other side does not know the cluster's secret; it must be the same on all nodes")
    })
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;

    async fn meet(ours: &str, theirs: &str) -> (io::Result<()>, io::Result<(u64, Purpose)>) {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Stream::Unix(a), Stream::Unix(b));
        let call = async {
            let called = call(&mut a, ours, 7, 2, Purpose::Session).await;
            drop(a);
            called
        };
        let listen = async {
            let answered = answer(&mut b, theirs, 2).await;
            drop(b);
            answered
        };
        tokio::join!(call, listen)
    }

    #[tokio::test]
    async fn both_sides_must_know_the_secret() {
        let (called, answered) = meet("s", "s").await;
        called.unwrap();
        assert_eq!(answered.unwrap(), (7, Purpose::Session));
        let (called, answered) = meet("s", "t").await;
        assert_eq!(called.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        answered.unwrap_err();
    }

    #[tokio::test]
    async fn whoever_stands_between_two_nodes_is_found_out() {
        let confirm_both = |ours: Binding, theirs: Binding| async move {
            let (a, b) = UnixStream::pair().unwrap();
            let (mut a, mut b) = (Stream::Unix(a), Stream::Unix(b));
            tokio::join!(confirm(&mut a, "s", &ours, true), confirm(&mut b, "s", &theirs, false))
        };
        let (calls, listens) = confirm_both([7; 32], [7; 32]).await;
        calls.unwrap();
        listens.unwrap();
        // Each end is encrypted towards somebody else.
        let (calls, listens) = confirm_both([7; 32], [8; 32]).await;
        assert_eq!(calls.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(listens.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn both_ends_of_an_encrypted_connection_know_the_same_of_it() {
        let between = crate::server::tls::BetweenNodes::new().unwrap();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect =
            async { between.connect(tokio::net::TcpStream::connect(address).await.unwrap()).await.unwrap() };
        let accept = async { between.accept(listener.accept().await.unwrap().0).await.unwrap() };
        let ((mut one, ours), (mut other, theirs)) = tokio::join!(connect, accept);
        assert_eq!(ours, theirs);
        let (calls, listens) =
            tokio::join!(confirm(&mut one, "s", &ours, true), confirm(&mut other, "s", &theirs, false));
        calls.and(listens).unwrap();
    }

    #[tokio::test]
    async fn a_stranger_is_told_nothing_but_random_bytes() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let mut b = Stream::Unix(b);
        a.write_all(&[b'x'; 64]).await.unwrap();
        assert_eq!(answer(&mut b, "s", 7).await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn a_proof_cannot_be_used_again() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (a, Stream::Unix(b));
        // What a caller once said to the same node, with another random number of its own.
        let mut hello = MAGIC.to_vec();
        hello.extend([2, 0, 0, 0, 0, 0, 0, 0, 7]);
        hello.extend(7_u64.to_be_bytes());
        hello.extend([0; NONCE_LEN]);
        let earlier = prove("s", b"calls", &[&hello[..], &[1; NONCE_LEN]].concat());
        a.write_all(&[&hello[..], &earlier].concat()).await.unwrap();
        assert_eq!(answer(&mut b, "s", 7).await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
