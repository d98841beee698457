//! Variants: one tag of a registry may name several snapshots, for hosts that are not alike. Each says in annotations what it needs of a
//! host, and a pull takes the first that fits. What an annotation says is only for this choice: what is pulled is checked by its own
//! manifest.

use std::process::{Command, Stdio};

use forkd_hub::{Annotations, Variant};
use forkd_proto::agent::{OLDEST_VERSION, VERSION};
use forkd_proto::host_cpu::{GuestCpu, HostCpu};
use forkd_store::Stored;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::record::{self, ZygoteRecord};

const VENDOR: &str = "dev.forkd.cpu.vendor";
/// Separated by spaces.
const FEATURES: &str = "dev.forkd.cpu.features";
const TSC_KHZ: &str = "dev.forkd.cpu.tsc-khz";
const STATE_VERSION: &str = "dev.forkd.state-version";
const AGENT_VERSION: &str = "dev.forkd.agent-version";
/// Variants whose misfit is named in a refusal.
const MAX_NAMED: usize = 8;

/// What a snapshot needs of a host, as its manifest in a registry says it.
pub(crate) fn annotations(head: &Stored, state_version: u32) -> Annotations {
    let cpu = &head.manifest().cpu;
    let mut annotations = Annotations::from_iter([
        (FEATURES.to_owned(), cpu.features.join(" ")),
        (STATE_VERSION.to_owned(), state_version.to_string()),
    ]);
    annotations.extend(cpu.vendor.clone().map(|vendor| (VENDOR.to_owned(), vendor)));
    annotations.extend(cpu.tsc_khz.map(|rate| (TSC_KHZ.to_owned(), rate.to_string())));
    if let Ok(record) = record::from_object::<ZygoteRecord>(head.local.about.clone()) {
        annotations.insert(AGENT_VERSION.to_owned(), record.shape.agent_version.to_string());
    }
    annotations
}

impl Engine {
    /// Chooses the first variant that fits this host. Those that do not say what they need are taken if none of the others fits. If none
    /// is left, says what each lacks.
    pub fn choose_variant(&self, variants: &[Variant]) -> Result<usize, String> {
        // One that is alone is judged by its own manifest, which says more.
        if let [_] = variants {
            return Ok(0);
        }
        let host = self.shared.host_cpu().map_err(|error| error.to_string())?;
        choose(variants, host.as_ref())
    }
}

impl Shared {
    /// What this host's CPU and KVM have. `None` if the VM's program does not say it.
    pub(crate) fn host_cpu(&self) -> Result<Option<HostCpu>, EngineError> {
        let asked = Command::new(&self.program).arg("cpu").stdin(Stdio::null()).output();
        let output = asked.map_err(EngineError::io("ask for this host's CPU"))?;
        Ok(serde_json::from_slice(&output.stdout).ok())
    }
}

fn choose(variants: &[Variant], host: Option<&HostCpu>) -> Result<usize, String> {
    let Some(host) = host else {
        return if variants.is_empty() { Err("the index lists no variants".into()) } else { Ok(0) };
    };
    let mut misfits = Vec::new();
    let mut silent = None;
    for (index, variant) in variants.iter().enumerate() {
        if !says_anything(&variant.annotations) {
            silent = silent.or(Some(index));
            continue;
        }
        match misfit(&variant.annotations, host) {
            None => return Ok(index),
            Some(reason) => misfits.push(format!("{}: {reason}", name(index, variant))),
        }
    }
    misfits.truncate(MAX_NAMED);
    silent.ok_or_else(|| misfits.join("; "))
}

fn name(index: usize, variant: &Variant) -> String {
    match variant.name() {
        Some(name) => format!("{:?}", name.chars().take(80).collect::<String>()),
        None => format!("number {}", index + 1),
    }
}

fn says_anything(annotations: &Annotations) -> bool {
    [VENDOR, FEATURES, TSC_KHZ, STATE_VERSION, AGENT_VERSION].iter().any(|key| annotations.contains_key(*key))
}

/// Why a host does not do. What is not said, or is no number, is not compared.
fn misfit(annotations: &Annotations, host: &HostCpu) -> Option<String> {
    let number = |key: &str| annotations.get(key).and_then(|text| text.parse::<u32>().ok());
    let agent = number(AGENT_VERSION).filter(|version| !(OLDEST_VERSION..=VERSION).contains(version));
    if let Some(found) = agent {
        return Some(format!("its agent speaks version {found}, this forkd {OLDEST_VERSION} to {VERSION}"));
    }
    let features = annotations.get(FEATURES).map(String::as_str).unwrap_or_default();
    let features: Vec<String> = features.split_ascii_whitespace().map(str::to_owned).collect();
    let guest = GuestCpu {
        vendor: annotations.get(VENDOR).map(String::as_str),
        features: &features,
        tsc_khz: number(TSC_KHZ),
        state_version: number(STATE_VERSION).unwrap_or(host.state_version),
    };
    // Both may be long, and come from whoever made the index.
    host.check(guest).err().map(|lacking| lacking.to_string().chars().take(300).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host() -> HostCpu {
        HostCpu {
            vendor: Some("AuthenticAMD".into()),
            features: vec!["avx".into(), "avx2".into()],
            tsc_khz: 2_400_000,
            scales_tsc: false,
            state_version: 1,
        }
    }

    fn variant(annotations: &[(&str, &str)]) -> Variant {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Variant { digest: forkd_image::digest::Digest::of(b""), size: 1, annotations: annotations.collect() }
    }

    #[test]
    fn the_first_that_fits_is_chosen_and_misfits_are_named() {
        let intel = variant(&[(VENDOR, "GenuineIntel"), ("dev.forkd.variant", "intel")]);
        let newer = variant(&[(VENDOR, "AuthenticAMD"), (FEATURES, "avx avx512f")]);
        let faster = variant(&[(TSC_KHZ, "3000000")]);
        let other_state = variant(&[(STATE_VERSION, "2")]);
        let other_agent = variant(&[(AGENT_VERSION, "99")]);
        let fits = variant(&[(VENDOR, "AuthenticAMD"), (FEATURES, "avx avx2"), (AGENT_VERSION, "1")]);
        let silent = variant(&[("org.example", "x")]);
        let all = [intel, newer, faster, other_state, other_agent];
        let chosen = |more: &[&Variant]| {
            let variants: Vec<Variant> = all.iter().chain(more.iter().copied()).cloned().collect();
            choose(&variants, Some(&host()))
        };
        assert_eq!(chosen(&[&silent, &fits]), Ok(6));
        assert_eq!(chosen(&[&silent]), Ok(5), "it may fit");
        let told = chosen(&[]).unwrap_err();
        for words in [
            "\"intel\": it ran on a CPU of GenuineIntel, this host has one of AuthenticAMD",
            "number 2: it needs CPU features that this host does not have: avx512f",
            "number 3: its time stamp counter runs at 3000000 kHz",
            "number 4: the state of its CPUs and devices has version 2",
            "number 5: its agent speaks version 99",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(choose(&all, None), Ok(0), "the host does not say what it has");
        assert!(choose(&[], None).is_err() && choose(&[], Some(&host())).is_err());
    }

    proptest! {
        #[test]
        fn whatever_annotations_say_one_is_chosen_or_none(texts in prop::collection::vec(".{0,12}", 0..12)) {
            let keys = [VENDOR, FEATURES, TSC_KHZ, STATE_VERSION, AGENT_VERSION];
            let variants: Vec<Variant> = texts
                .chunks(3)
                .map(|chunk| {
                    let pairs: Vec<_> = keys.iter().zip(chunk).map(|(key, text)| (*key, text.as_str())).collect();
                    variant(&pairs)
                })
                .collect();
            match choose(&variants, Some(&host())) {
                Ok(index) => prop_assert!(index < variants.len()),
                Err(reason) => prop_assert!(reason.len() < MAX_NAMED * 1600),
            }
        }
    }
}
