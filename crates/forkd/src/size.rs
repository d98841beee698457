//! Sizes on the command line: a number and M, G or T, in powers of 1024; a bare number is MiB.

/// Parses to MiB.
pub fn parse_mib(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => 0,
        "g" | "gb" | "gib" => 10,
        "t" | "tb" | "tib" => 20,
        _ => return Err("expected a size such as 4G, 512M or 2048 (MiB)".into()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a size such as 4G, 512M or 2048 (MiB)")?;
    number.checked_mul(1 << shift).filter(|mib| *mib < 1 << 40).ok_or_else(|| "that is too large".into())
}

#[cfg(test)]
mod tests {
    use super::parse_mib;

    #[test]
    fn sizes() {
        assert_eq!(parse_mib("4G"), Ok(4096));
        assert_eq!(parse_mib("512M"), Ok(512));
        assert_eq!(parse_mib("512"), Ok(512));
        assert_eq!(parse_mib("1 TiB"), Ok(1 << 20));
        for bad in ["", "G", "-1", "1.5G", "4X", "99999999999999999999G", "9999999999999T"] {
            assert!(parse_mib(bad).is_err(), "{bad}");
        }
    }
}
