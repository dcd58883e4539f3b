//! Free TCP ports on loopback.

use crate::{Error, Result};
use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Where free ports are looked for: below the range from which Linux takes the ports of outgoing connections.
/// A port from that range may be taken by any client while its server is down for a restart.
const PORTS: Range<u16> = 20_000..32_000;
const ATTEMPTS: u32 = 200;

/// What this process was given. Who asks for several ports listens on them only later, and one that was stopped for a
/// while wants its port again.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port on 127.0.0.1 on which nobody listens now, and which this process was not given before.
///
/// Another process may take it before the caller does, so callers try again with another one.
///
/// # Errors
/// [`Error::NoFreePort`] when 200 random ones are all taken.
pub fn free_port() -> Result<u16> {
    let length = u64::from(PORTS.end - PORTS.start);
    let candidate = || PORTS.start + u16::try_from(random() % length).unwrap_or(0);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut candidates = (0..ATTEMPTS).map(|_| candidate());
    candidates.find(|port| is_free(*port) && given.insert(*port)).ok_or(Error::NoFreePort)
}

/// Whether nobody listens on 127.0.0.1 at this port.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Differs from call to call and from process to process; std seeds it from the operating system.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        // Of 1,000 that are drawn by chance alone, some forty are equal to others.
        let given: BTreeSet<u16> = (0..1000).map(|_| free_port().unwrap()).collect();
        assert_eq!(given.len(), 1000);
    }
}
