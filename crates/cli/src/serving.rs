//! Runs the runtime until the process is asked to stop: what `serve`, `up` and the demo have in common.

use crate::CommandError;
use crate::signals::Signals;
use onecopy_runtime::{Handle, Settings};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// The grammar descends once a level of nesting of a statement; this is enough for thousands.
const WORKER_STACK_BYTES: usize = 16 << 20;

/// Serves until SIGINT or SIGTERM. `ready` is called when clients can connect; its failure ends serving. `reload` is
/// called at SIGHUP.
///
/// # Errors
/// When serving cannot start, or what `ready` failed with.
pub fn serve_until_stopped(
    settings: Settings,
    ready: impl FnOnce(&Handle) -> Result<(), CommandError>,
    reload: impl FnMut(),
) -> Result<(), CommandError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .thread_stack_size(WORKER_STACK_BYTES)
        .thread_name("onecopy")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let (tell, told) = oneshot::channel();
        let mut failed = None;
        let stop = async {
            match told.await {
                Ok(Err(error)) => failed = Some(error),
                Ok(Ok(())) | Err(_) => signals.until_stop(reload).await,
            }
        };
        let announce = |handle: &Handle| {
            // Received for as long as `stop` lives, which is as long as serving does.
            let _ = tell.send(ready(handle));
        };
        onecopy_runtime::serve(settings, announce, stop).await?;
        failed.map_or(Ok(()), Err)
    })
}
