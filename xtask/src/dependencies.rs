//! What cargo knows of the packages: who depends on whom, at run time and not only in tests and builds.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The graph of run-time dependencies.
#[derive(Debug)]
pub(crate) struct Dependencies {
    /// Package id to name.
    names: BTreeMap<String, String>,
    /// Package id to licence, in SPDX's words; empty if the package names none.
    licences: BTreeMap<String, String>,
    /// Package id to the ids of what it depends on at run time; those of procedural macros run in the compiler and
    /// are left out.
    edges: BTreeMap<String, Vec<String>>,
    /// The ids of this repository's packages.
    members: Vec<String>,
}

impl Dependencies {
    /// Asks cargo.
    pub(crate) fn read(workspace: &Path) -> Result<Dependencies, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(workspace)
            .output()
            .map_err(|error| format!("run cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
        let metadata =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
        Dependencies::of(&metadata).ok_or_else(|| "cargo metadata has an unknown form".to_owned())
    }

    /// Reads what `cargo metadata` prints; `None` if its form is unknown.
    pub(crate) fn of(metadata: &Value) -> Option<Dependencies> {
        let mut names = BTreeMap::new();
        let mut licences = BTreeMap::new();
        let mut macros = BTreeSet::new();
        for package in metadata["packages"].as_array()? {
            let id = package["id"].as_str()?.to_owned();
            let kinds = package["targets"].as_array()?.iter().flat_map(|target| target["kind"].as_array());
            if kinds.flatten().any(|kind| kind == "proc-macro") {
                macros.insert(id.clone());
            }
            licences.insert(id.clone(), package["license"].as_str().unwrap_or_default().to_owned());
            names.insert(id, package["name"].as_str()?.to_owned());
        }
        let mut edges = BTreeMap::new();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let at_run_time = |dependency: &&Value| {
                let kinds = dependency["dep_kinds"].as_array();
                kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
            };
            let dependencies = node["deps"].as_array()?.iter().filter(at_run_time);
            let ids = dependencies.filter_map(|dependency| Some(dependency["pkg"].as_str()?.to_owned()));
            edges.insert(node["id"].as_str()?.to_owned(), ids.filter(|id| !macros.contains(id)).collect());
        }
        let members = metadata["workspace_members"].as_array()?.iter();
        let members = members.map(|id| id.as_str().map(str::to_owned)).collect::<Option<_>>()?;
        Some(Dependencies { names, licences, edges, members })
    }

    /// The names of this repository's packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|id| self.names[id].as_str())
    }

    /// What a package of this repository depends on directly.
    pub(crate) fn direct(&self, package: &str) -> BTreeSet<&str> {
        let edges = self.id(package).and_then(|id| self.edges.get(id));
        edges.into_iter().flatten().map(|id| self.names[id].as_str()).collect()
    }

    /// What a package of this repository depends on, directly or not, each with the way to it: `a -> b -> c`; without what
    /// only those of `passed_over` depend on.
    pub(crate) fn all(&self, package: &str, passed_over: &[&str]) -> BTreeMap<&str, String> {
        let mut found = BTreeMap::new();
        let mut open: Vec<(&str, String)> =
            self.id(package).map(|id| (id, package.to_owned())).into_iter().collect();
        while let Some((id, way)) = open.pop() {
            for next in self.edges.get(id).into_iter().flatten() {
                let name = self.names[next].as_str();
                let way = format!("{way} -> {name}");
                if !found.contains_key(name) {
                    found.insert(name, way.clone());
                    if !passed_over.contains(&name) {
                        open.push((next, way));
                    }
                }
            }
        }
        found
    }

    /// The licence of everything that our packages depend on at run time, by name.
    pub(crate) fn licences(&self) -> BTreeMap<&str, &str> {
        let mut open: Vec<&str> = self.members.iter().map(String::as_str).collect();
        let mut found = BTreeSet::new();
        while let Some(id) = open.pop() {
            if found.insert(id) {
                open.extend(self.edges.get(id).into_iter().flatten().map(String::as_str));
            }
        }
        found.into_iter().map(|id| (self.names[id].as_str(), self.licences[id].as_str())).collect()
    }

    fn id(&self, package: &str) -> Option<&str> {
        self.members.iter().find(|id| self.names[*id] == package).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn graph() -> Dependencies {
        let package =
            |name: &str, kind: &str| json!({"id": name, "name": name, "targets": [{"kind": [kind]}]});
        let edge = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        Dependencies::of(&json!({
            "packages": [
                package("core", "lib"), package("map", "lib"), package("os", "lib"),
                package("derive", "proc-macro"), package("tests", "lib"),
            ],
            "workspace_members": ["core"],
            "resolve": {"nodes": [
                {"id": "core", "deps": [edge("map", Value::Null), edge("derive", Value::Null), edge("tests", json!("dev"))]},
                {"id": "map", "deps": [edge("os", Value::Null)]},
                {"id": "derive", "deps": [edge("os", Value::Null)]},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn indirect_dependencies_are_found_with_the_way_to_them() {
        assert_eq!(graph().all("core", &[])["os"], "core -> map -> os");
        assert!(!graph().all("core", &["map"]).contains_key("os"));
    }

    #[test]
    fn tests_and_procedural_macros_do_not_count() {
        assert_eq!(graph().direct("core"), BTreeSet::from(["map"]));
        assert!(!graph().all("core", &[]).contains_key("tests"));
    }
}
