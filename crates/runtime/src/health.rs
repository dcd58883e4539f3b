//! Finding out that a server is silent: one that is stopped, hangs or is cut off by the network keeps its connections, and
//! whoever waits for its answer would wait for ever.

use std::pin::pin;
use std::time::Duration;

use crate::lane::{Lane, LaneError};

/// A limit is waited for in so many steps: a process that was itself stopped for long finds only one of them passed, and
/// does not blame the server.
const STEPS: u32 = 10;

/// Waits for an answer; `None` when none has come within the limit. Zero waits for ever.
pub async fn answered<T>(answer: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let mut answer = pin!(answer);
    if limit.is_zero() {
        return Some(answer.await);
    }
    for _ in 0..STEPS {
        tokio::select! {
            biased;
            answer = &mut answer => return Some(answer),
            () = tokio::time::sleep(limit / STEPS) => {}
        }
    }
    None
}

/// Asks a server again and again over a connection of its own. Ends when it leaves a question unanswered for as long as
/// the limit, or the connection ends.
pub async fn watch(mut probe: Lane, limit: Duration) -> Ill {
    if limit.is_zero() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(limit / STEPS).await;
        match answered(probe.command("SELECT 1"), limit).await {
            Some(Ok(())) => {}
            // Whatever it says, it has said something; the end of the connection comes next, if it is one.
            Some(Err(error)) if error.is_database() => {}
            Some(Err(error)) => return Ill::Lost(error),
            None => return Ill::Silent(limit),
        }
    }
}

/// What is wrong with a server.
#[derive(Debug, thiserror::Error)]
pub enum Ill {
    #[error("it has answered nothing for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error(transparent)]
    Lost(LaneError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;
    use onecopy_wire::backend::{Status, build};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    const LIMIT: Duration = Duration::from_millis(200);

    fn on_loop(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn server_that_stops_answering_is_found_silent_and_one_that_goes_is_found_lost() {
        on_loop(async {
            for goes in [false, true] {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let server = async move {
                    let mut buffer = [0_u8; 256];
                    for _ in 0..3 {
                        assert!(theirs.read(&mut buffer).await.unwrap() > 0);
                        let mut answer = bytes::BytesMut::new();
                        build::command_complete(&mut answer, "SELECT 1");
                        build::ready_for_query(&mut answer, Status::Idle);
                        theirs.write_all(&answer).await.unwrap();
                    }
                    if goes { drop(theirs) } else { std::future::pending().await }
                };
                let server = tokio::spawn(server);
                let found = watch(Lane::new(Stream::Unix(ours)), LIMIT).await;
                assert!(
                    matches!((goes, &found), (false, Ill::Silent(_)) | (true, Ill::Lost(_))),
                    "{found:?}"
                );
                server.abort();
            }
        });
    }

    #[test]
    fn standstill_of_our_own_counts_for_one_step_of_the_limit() {
        on_loop(async {
            let mut polled = 0;
            let slow = std::future::poll_fn(|_| {
                polled += 1;
                // As if this process had been stopped for longer than the limit, before the answer is looked at.
                if polled == 2 {
                    std::thread::sleep(LIMIT * 2);
                }
                if polled > 3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            assert!(answered(slow, LIMIT).await.is_some());
        });
    }

    #[test]
    fn no_limit_waits_for_ever() {
        on_loop(async {
            assert_eq!(answered(async { 7 }, Duration::ZERO).await, Some(7));
        });
    }
}
