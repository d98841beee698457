# Every target sets up what it needs. `make help` lists them.

CARGO ?= cargo
CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.2
CARGO_DEB_VERSION := 3.8.0
FUZZ_SECONDS ?= 60
# The same packages in every build of a profile: others would have other features, and all would be built again.
RELEASE := --release --locked --workspace
TESTED := --locked --workspace
# What is installed, without what only tests have: see the features of forkd-vmm.
PRODUCT := --release --locked --package forkd --package forkd-vmm --package forkd-agent
CARGO_DEB = @cargo-deb --version 2>/dev/null | grep -qx 'cargo-deb $(CARGO_DEB_VERSION)' \
	|| $(CARGO) install --locked --version $(CARGO_DEB_VERSION) cargo-deb
RUN := $(CARGO) test $(TESTED) --no-fail-fast

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all lane-api lane-core lane-one lane-two setup setup-run setup-package build install uninstall deb deb-test tarball container build-bench build-tests lint lint-python lint-typescript deny unit e2e e2e-agent e2e-isolation e2e-e2b e2b-upstream e2e-hub e2e-package recipes mcp-clients soak soak-daemon schema sdk-python sdk-typescript sdk-models reference release-python release-typescript release-test bench bench-fork bench-api bench-branch bench-chain bench-load bench-hub bench-autostart fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

# Built as tests are: a release takes twice as long, and the engine is no faster for it. `make bench` measures a release.
demo: setup-run ## the main job, from nothing: 100 sandboxes of one warm parent, as a table and a picture
	$(CARGO) build $(TESTED) --bin forkd --bin forkd-vmm --bin forkd-agent --bin bench-engine
	scripts/demo

check: setup ## what a change needs at once: formatting, clippy and unit tests of the crates that changed
	scripts/check

test: lint build-tests ## the checks and tests that every change must pass
	$(MAKE) --jobs $$(scripts/lanes) --keep-going lane-api lane-core

test-all: build-tests ## the long end-to-end suites that make test leaves out
	$(MAKE) --jobs $$(scripts/lanes) --keep-going lane-one lane-two

# Everything that runs on a KVM host. Machines have one virtual CPU each, so two cores run two of them, or one and the unit tests.
lane-api: export FORKD_TEST_MACHINE := forkd-tests
lane-api: export FORKD_TESTS := core
lane-api: build-tests
	$(RUN) --test api

lane-core: export FORKD_TEST_MACHINE := forkd-tests-two
lane-core: export FORKD_TESTS := core
lane-core: unit
	$(RUN) --test isolation --test e2b

lane-one: export FORKD_TEST_MACHINE := forkd-tests
lane-one: export FORKD_TESTS := rest
lane-one: build-tests
	$(RUN) --test e2e --test isolation --test agent --test build

lane-two: export FORKD_TEST_MACHINE := forkd-tests-two
lane-two: export FORKD_TESTS := rest
lane-two: build-tests
	tests/sdk/run target/debug/forkd-agent
	$(RUN) --test machine --test api --test e2b

setup: ## install what is missing, or say how
	@scripts/setup

setup-run:
	@scripts/setup run

setup-package:
	@scripts/setup package

build: setup ## build the release binaries
	$(CARGO) build $(PRODUCT) --bins

install: ## install what make build has built: binaries, man pages, completions, systemd unit; PREFIX (/usr/local), DESTDIR
	packaging/install

uninstall: ## remove what make install has installed; keeps snapshots, images and logs
	packaging/install --uninstall

deb: build setup-package ## a Debian package in target/debian; cargo-deb is built the first time
	$(CARGO_DEB)
	packaging/deb

deb-test: deb ## install, upgrade and purge that package in a clean root (needs root)
	packaging/test-deb

tarball: build setup-package ## target/forkd-VERSION-x86_64-linux.tar.gz and SHA256SUMS
	packaging/tarball

container: deb ## a container image of Debian packages, as an OCI archive in target
	packaging/container

build-bench: setup
	$(CARGO) build $(RELEASE) --bins

build-tests: setup ## build the tests and the binaries they run
	$(CARGO) build $(TESTED) --bins --tests

lint: setup lint-python lint-typescript ## formatting, clippy, types of the Python and TypeScript clients
	$(CARGO) fmt --check
	$(CARGO) clippy $(TESTED) --all-targets -- --deny warnings
	$(CARGO) clippy $(TESTED) --no-default-features --bin forkd -- --deny warnings
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null

lint-python:
	sdk/python/with-tools ./generate --check
	sdk/python/with-tools ruff format --check --quiet .
	sdk/python/with-tools ruff check --quiet .
	sdk/python/with-tools mypy
	sdk/python/with-tools sh -euc 'ruff format --check --quiet --config pyproject.toml ../../recipes/*/*.py'
	sdk/python/with-tools sh -euc 'ruff check --quiet --config pyproject.toml --extend-ignore PT ../../recipes/*/*.py'
	sdk/python/with-tools sh -euc 'for program in ../../recipes/*/use.py; do mypy --no-error-summary "$$program"; done'

lint-typescript:
	sdk/typescript/with-tools ./generate --check
	sdk/typescript/with-tools prettier --check --log-level warn .
	sdk/typescript/with-tools ./snippets --check ../../docs/sdk-typescript.md
	sdk/typescript/with-tools eslint .

deny: setup ## cargo-deny, which is built the first time: licences, sources and bans of dependencies
	@cargo-deny --version 2>/dev/null | grep -qx 'cargo-deny $(CARGO_DENY_VERSION)' \
		|| $(CARGO) install --locked --version $(CARGO_DENY_VERSION) cargo-deny
	cargo-deny --locked check bans licenses sources

unit: build-tests ## tests that need no QEMU; the engine's need /dev/kvm, those of images root
	$(RUN) --lib --bins
	$(RUN) --test architecture --test registry --test serve --test engine --test sandboxes --test daemon --test cli

e2e: build-tests ## tests of the machine, and tests on a KVM host
	$(RUN) --test machine --test e2e

e2e-agent: build-tests ## real guests: their agent, the official E2B clients against it, builds, and all through the daemon's API
	tests/sdk/run target/debug/forkd-agent
	$(RUN) --test agent --test build --test api

e2e-isolation: build-tests ## guests that try what they should not be able to
	$(RUN) --test isolation

e2e-e2b: build-tests ## the official E2B clients against a daemon with real guests
	$(RUN) --test e2b

e2b-upstream: ## the tests of E2B's own repositories, from checkouts in DIR, against the daemon of E2B_API_URL
	tests/e2b/upstream/run $(DIR) $(ARGS)

e2e-hub: build-tests ## two machines and a registry with TLS and passwords: what one pushes, the other forks
	tests/hub/run

e2e-package: build-tests setup-package ## the Debian package in the machine: installed, upgraded from an older build while a sandbox runs, purged
	$(CARGO_DEB)
	tests/package/run

recipes: build-tests ## every recipe built, warmed, forked and used; a JSON line with the figure of each on stderr
	FORKD_RECIPES=1 $(RUN) --test api -- recipes

mcp-clients: build-tests ## official clients of the Model Context Protocol, and its conformance suite, against a daemon with tiny guests
	FORKD_MCP_CLIENTS=1 $(RUN) --test daemon -- official_mcp_clients

soak: deny build-tests release-test ## the same with large counts: 10 000 forks, 30 starts, 10 times 100 VMs, 4000 program starts
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml
	FORKD_SOAK=1 $(RUN) --lib many_leases
	FORKD_SOAK=1 $(RUN) --test sandboxes -- forged
	$(MAKE) e2e-hub e2e-package deb-test mcp-clients
	FORKD_SOAK=1 $(RUN) --test engine --test machine --test e2e --test agent --test build --test api --test e2b --test isolation

soak-daemon: build-tests ## the daemon killed 100 times under load, with 500 slow clients, 2000 names of a template, and asked all its OpenAPI document allows
	FORKD_SOAK=1 $(RUN) --test daemon -- soak memory schema many_names

schema: build-tests ## every request that can be made of the OpenAPI document, against a daemon
	$(RUN) --test daemon -- schema

sdk-python: setup lint-python ## the Python client: types, tests, and a wheel in target/wheels that is installed and imported
	sdk/python/with-tools pytest --quiet
	sdk/python/with-tools ./wheel

sdk-typescript: setup lint-typescript ## the TypeScript client: types, tests, and a package in target/npm that is installed and imported
	sdk/typescript/with-tools ./test
	sdk/typescript/with-tools ./pack --all

sdk-models: ## write anew what is made of docs/openapi.json: docs/api.md, the models of both clients; and Python's synchronous half
	scripts/api-docs
	sdk/python/with-tools ./generate
	sdk/typescript/with-tools ./generate

reference: ## write docs/openapi.json and docs/reference anew
	FORKD_UPDATE=1 $(CARGO) test $(TESTED) --lib --bins -- the_page_of_the the_checked_in_openapi_document

release-test: setup ## dry runs of both releases, and that what must not be released is refused
	sdk/release-test

release-python: setup ## build the wheel and check it for PyPI; with PUBLISH=1, from a clean tree at the tag of its version, publish it
	sdk/release python

release-typescript: setup ## build the package and check it for npm; with PUBLISH=1, from a clean tree at the tag of its version, publish it
	sdk/release typescript

bench: bench-fork bench-api bench-branch bench-chain bench-load bench-hub bench-autostart ## measurements, one JSON object a line
	@target/release/bench-machine

bench-fork: build-bench ## children of one zygote, beside the floor (and Firecracker, if on PATH)
	@target/release/bench-fork

bench-api: build-bench ## children of one snapshot through the daemon's API, beside bench-fork's figure (needs root)
	@target/release/bench-api

bench-branch: build-bench ## pause of a VM during a branch
	@target/release/bench-branch

bench-chain: build-bench ## what a child costs, and how fast it reads its disk, against the depth of its snapshot's chain
	@target/release/bench-chain

bench-load: build-bench ## the first fork of a snapshot that is on disk only, beside copying and hashing the same bytes
	@target/release/bench-load

bench-hub: build-bench ## sending a snapshot's memory to a registry or a file and back, beside zstd and BLAKE3 alone
	@target/release/bench-hub

bench-autostart: build-bench ## from the import of a client to its first sandbox where there is no daemon, beside the next fork
	@target/release/bench-autostart

fuzz: setup ## every fuzz target for FUZZ_SECONDS (60) each
	@cargo fuzz --version 2>/dev/null | grep -qx 'cargo-fuzz $(CARGO_FUZZ_VERSION)' \
		|| $(CARGO) install --locked --version $(CARGO_FUZZ_VERSION) cargo-fuzz
	scripts/fuzz $(FUZZ_SECONDS)

clean: ## remove what was built (not machines and their images)
	$(CARGO) clean
