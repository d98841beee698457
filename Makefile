# Every target sets up what it needs. `make help` lists them.

CARGO ?= cargo
CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.2
FUZZ_SECONDS ?= 60
# The agent is the first program of any guest: nothing of the host's may be needed to run it.
GUEST_TARGET := x86_64-unknown-linux-gnu
GUEST_FLAGS := -C target-feature=+crt-static -C strip=symbols
# The same packages in every build of a profile, and always some test: others would have other features, and all would be
# built again.
RELEASE := --release --locked --workspace --exclude forkd-agent
E2E := $(CARGO) test $(RELEASE) --no-fail-fast

.DEFAULT_GOAL := help
.PHONY: help demo test lane-one lane-two setup build lint lint-python deny unit e2e e2e-agent e2e-isolation e2e-e2b soak soak-daemon schema sdk-python sdk-models bench bench-fork bench-branch bench-chain fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

demo: build ## the main job, from nothing: 100 sandboxes of one warm parent, as a table and a picture
	scripts/demo

test: lint unit build ## run every check and test
	$(E2E) --no-run $(LANE_ONE) $(LANE_TWO)
	$(MAKE) --jobs $$(scripts/lanes) --keep-going lane-one lane-two

# All that runs on a KVM host, in two halves that take about as long. Two machines have one virtual CPU each, so two cores run both.
LANE_ONE := --test machine --test e2e --test isolation --test agent
LANE_TWO := --test build --test api --test e2b

lane-one: export FORKD_TEST_MACHINE := forkd-tests
lane-one:
	$(E2E) $(LANE_ONE)

lane-two: export FORKD_TEST_MACHINE := forkd-tests-two
lane-two:
	tests/sdk/run target/release/guest/forkd-agent
	$(E2E) $(LANE_TWO)

setup: ## install what is missing, or say how
	@scripts/setup

build: setup ## build the release binaries
	$(CARGO) build $(RELEASE) --bins --test e2e
	RUSTFLAGS='$(GUEST_FLAGS)' $(CARGO) build --release --locked --package forkd-agent --target $(GUEST_TARGET)
	install -D target/$(GUEST_TARGET)/release/forkd-agent target/release/guest/forkd-agent

lint: setup deny lint-python ## formatting, clippy, types of the Python client, licences and sources of dependencies
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- --deny warnings
	cargo-deny --locked check bans licenses sources
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null

lint-python:
	sdk/python/with-tools ./generate --check
	sdk/python/with-tools ruff format --check --quiet .
	sdk/python/with-tools ruff check --quiet .
	sdk/python/with-tools mypy

deny:
	@cargo-deny --version 2>/dev/null | grep -qx 'cargo-deny $(CARGO_DENY_VERSION)' \
		|| $(CARGO) install --locked --version $(CARGO_DENY_VERSION) cargo-deny

unit: setup ## tests that need no QEMU; the engine's need /dev/kvm, those of images root
	$(CARGO) build --locked --workspace --bins --test engine
	$(CARGO) test --locked --workspace --lib --bins
	$(CARGO) test --locked --workspace --no-fail-fast --test architecture --test registry --test serve --test engine --test sandboxes --test daemon --test cli

e2e: build ## tests of the machine, and tests on a KVM host
	$(E2E) --test machine --test e2e

e2e-agent: build ## real guests: their agent, the official E2B clients against it, builds, and all through the daemon's API
	tests/sdk/run target/release/guest/forkd-agent
	$(E2E) --test agent --test build --test api

e2e-isolation: build ## guests that try what they should not be able to
	$(E2E) --test isolation

e2e-e2b: build ## the official E2B clients, several versions of each, against a daemon with real guests
	$(E2E) --test e2b

soak: build ## the same with large counts: 10 000 forks, 30 starts, 10 times 100 VMs
	FORKD_SOAK=1 $(CARGO) test --locked --workspace --lib many_leases
	FORKD_SOAK=1 $(E2E) --test engine --test machine --test e2e --test agent --test build --test api --test isolation

soak-daemon: build ## the daemon killed 100 times under load, with 500 slow clients, and asked all its OpenAPI document allows
	FORKD_SOAK=1 $(E2E) --test daemon -- soak memory schema

schema: ## every request that can be made of the OpenAPI document, against a daemon
	$(CARGO) build --locked --workspace --bins --test daemon
	$(CARGO) test --locked --workspace --test daemon -- schema

sdk-python: setup lint-python ## the Python client: types, tests, and a wheel in target/wheels that is installed and imported
	sdk/python/with-tools pytest --quiet
	sdk/python/with-tools ./wheel

sdk-models: ## write anew what is made of docs/openapi.json: docs/api.md, the Python client's models; and its synchronous half
	scripts/api-docs
	sdk/python/with-tools ./generate

bench: bench-fork bench-branch bench-chain ## measurements, one JSON object a line
	@target/release/bench-machine

bench-fork: build ## children of one zygote, beside the floor (and Firecracker, if on PATH)
	@target/release/bench-fork

bench-branch: build ## how long a VM stands still while it is branched
	@target/release/bench-branch

bench-chain: build ## what a child costs against the depth of its snapshot's chain
	@target/release/bench-chain

fuzz: setup ## every fuzz target for FUZZ_SECONDS (60) each
	@cargo fuzz --version 2>/dev/null | grep -qx 'cargo-fuzz $(CARGO_FUZZ_VERSION)' \
		|| $(CARGO) install --locked --version $(CARGO_FUZZ_VERSION) cargo-fuzz
	scripts/fuzz $(FUZZ_SECONDS)

clean: ## remove what was built (not machines and their images)
	$(CARGO) clean
