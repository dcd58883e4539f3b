//! The `onecopy` binary.

/// Faster than the system's for many small, short-lived buffers on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    onecopy_cli::main()
}
