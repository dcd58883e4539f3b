# The commands of this repository. `make` lists them; CONTRIBUTING.md says which to run when.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# rustup puts cargo here, and a login shell is not always around.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
ONECOPY = $(CARGO) run --quiet --release --locked --bin onecopy --

# How long the fuzzer works on each target, and the soak test on all of it.
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600
# The seeds of the simulated torture.
SEEDS ?= 0..10000
# How often each fault is injected under each load, and before how many nodes; those of nodes only if they are several.
ROUNDS ?= 2
NODES ?= 1
# To what servers are upgraded: 16 or 18.
VERSION ?= 18

.PHONY: help setup build demo test check fix bench cluster-bench failures upgrade clients soak reproduce torture fuzz

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing (Debian and kin; as root, or by sudo without a password)
	@scripts/setup

build: ## build the onecopy binary, optimised
	@scripts/setup build
	$(CARGO) build --release --locked --bin onecopy

demo: ## three PostgreSQL servers behind onecopy and a bookstore on them (KEEP=1 leaves it running)
	@scripts/setup demo
	$(CARGO) build --release --locked --bin onecopy
	$(ONECOPY) demo $(if $(KEEP),--keep)

test: ## the checks and every test, those with real servers included (QUICK=1: without the checks)
	@scripts/test $(if $(QUICK),quick)

check: ## format, lints, documentation, architecture; changes nothing
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	$(CARGO) xtask architecture

fix: ## format, repair what lints can, take over changed snapshots
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	SNAPSHOTS=overwrite $(CARGO) test --quiet -p onecopy-cli

bench: ## PostgreSQL, PgBouncer, Pgpool-II and onecopy side by side; results in results/
	@scripts/setup bench
	$(CARGO) build --release --locked --bin onecopy
	$(ONECOPY) bench compare --out results

cluster-bench: ## clusters of capped servers, measured and simulated side by side; results in results/
	@scripts/setup bench
	$(CARGO) build --release --locked --bin onecopy
	$(ONECOPY) bench cluster --out results

failures: ## every fault of a replica under two loads, ROUNDS (2) times each, and of NODES (1); results in results/
	@scripts/setup demo
	$(CARGO) build --release --locked --bin onecopy
	for load in tpcw pgbench; do \
	    $(ONECOPY) bench failures --load $$load --fault kill,stop,sessions,backend,restart,full \
	        --nodes $(NODES) --rounds $$(( 6 * $(ROUNDS) )) --out results || exit 1; \
	    test $(NODES) -lt 3 || $(ONECOPY) bench failures --load $$load --fault leader,node,pause,all \
	        --nodes $(NODES) --rounds $$(( 4 * $(ROUNDS) )) --out results || exit 1; \
	done

upgrade: ## a replica joins and all are replaced by PostgreSQL VERSION (18), under load; results in results/
	@scripts/setup upgrade
	$(CARGO) build --release --locked --bin onecopy
	to=$$(scripts/another-postgres $(VERSION)) && $(ONECOPY) bench upgrade --to "$$to" --out results

clients: ## drivers of several languages against a real cluster
	@scripts/setup clients
	@scripts/clients

soak: ## the real-server checkers for SOAK_SECONDS (600) each, the second with faults; its report into SOAK_REPORT
	@scripts/setup build
	SOAK_SECONDS=$(SOAK_SECONDS) $(if $(SOAK_REPORT),SOAK_REPORT=$(abspath $(SOAK_REPORT))) $(CARGO) test --release --locked -p onecopy-cli --test soak --test nodes -- --ignored --nocapture

reproduce: ## what papers claim, run again in virtual time; results in results/reproduce (QUICK=1: a look in minutes)
	@scripts/setup build
	$(CARGO) build --release --locked --bin onecopy
	$(ONECOPY) reproduce $(if $(QUICK),--quick)

torture: ## 10,000 simulated clusters in which everything breaks (SEEDS=FROM..TO: others)
	@scripts/setup build
	$(CARGO) build --release --locked --bin onecopy
	$(ONECOPY) torture --seeds $(SEEDS) --coverage

fuzz: ## every fuzz target for FUZZ_SECONDS (60); needs a nightly compiler
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz
