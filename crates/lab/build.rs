//! Names the sources on which results depend, so that results are used by every program that would find the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Whatever decides what a run finds.
const SOURCES: [&str; 13] = [
    "../classify/src",
    "../core/src",
    "../sim/data",
    "../sim/src",
    "../workload/data",
    "../workload/src",
    "src/asking.rs",
    "src/effort.rs",
    "src/experiment.rs",
    "src/runner.rs",
    "src/variation.rs",
    "src/whole",
    "src/wide",
];

fn main() -> io::Result<()> {
    let mut hash = Sha256::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        let mut files = Vec::new();
        collect(Path::new(source), &mut files)?;
        files.sort();
        for file in files {
            hash.update(file.to_string_lossy().as_bytes());
            hash.update(fs::read(&file)?);
        }
    }
    let name: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    println!("cargo::rustc-env=ONECOPY_LAB_SOURCES={name}");
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}
