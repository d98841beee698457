//! How much of it: the same tests run a few times in `make test` and as often as was asked for in `make soak`.

/// `small` in `make test`, `large` in `make soak`.
pub fn count(small: u32, large: u32) -> u32 {
    if is_soak() { large } else { small }
}

/// Whether this is `make soak`.
pub fn is_soak() -> bool {
    std::env::var_os("FORKD_SOAK").is_some_and(|value| value == "1")
}
