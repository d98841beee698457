//! What making images and kernels fails with, as the caller sees it. Paths of the host stay in the log.

use std::error::Error;
use std::io;

use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_build::{BuildImageError, GuestsError, RunError, UnpackError};
use forkd_host::command::CommandError;
use forkd_host::disk::DiskError;
use forkd_image::archive::ArchiveError;
use forkd_image::builds::BuildCacheError;
use forkd_image::debian::DebianError;
use forkd_image::dockerfile::{BuildError, ContextError};
use forkd_image::images::{Ext4Error, ImageError};
use forkd_image::import::ImportError;
use forkd_image::kernels::{DependsError, KernelStoreError, PackageError};
use forkd_image::registry::PullError;

use crate::engine_error::shortened;
use crate::error::{ApiError, chain};
use crate::kept::KeptError;

/// The words of an error that has no paths in it, with its causes.
fn of(code: ErrorCode, error: &dyn Error) -> ApiError {
    ApiError::new(code, shortened(chain(error)))
}

/// The caller has disconnected, or the daemon is stopping.
fn given_up() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "cancelled: the daemon is stopping")
}

/// The daemon's fault, unless its disk is full.
fn internal(error: &(dyn Error + 'static)) -> ApiError {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| full.contains(&error.kind())) {
            return ApiError::new(ErrorCode::NoDisk, "the disk of the daemon's host is full")
                .hint(HintCode::RemoveImages)
                .detail(chain(error));
        }
        cause = error.source();
    }
    ApiError::internal(error)
}

/// Something that the daemon's host lacks.
fn unavailable(error: &dyn Error) -> ApiError {
    of(ErrorCode::Unavailable, error).hint(HintCode::OnHost)
}

impl From<ImageError> for ApiError {
    fn from(error: ImageError) -> ApiError {
        ApiError::from(&error)
    }
}

impl From<&ImageError> for ApiError {
    fn from(error: &ImageError) -> ApiError {
        match error {
            ImageError::Unknown(name) => {
                ApiError::new(ErrorCode::NotFound, format!("there is no image {name:?}"))
                    .hint(HintCode::ListImages)
            }
            ImageError::Ambiguous(_) => of(ErrorCode::Malformed, error),
            ImageError::Shared(_) => of(ErrorCode::WrongState, error),
            ImageError::NeedsRoot => ApiError::new(
                ErrorCode::Unavailable,
                "cannot make images: the daemon needs root to set the owners of their files",
            )
            .hint(HintCode::NeedsRoot),
            ImageError::WrongLayer { .. } => of(ErrorCode::Malformed, error),
            ImageError::Archive(error) => error.into(),
            ImageError::Disk(DiskError::Full { purpose, needed, free, .. }) => ApiError::new(
                ErrorCode::NoDisk,
                format!("{purpose} needs {needed} MiB of disk space, and {free} MiB are free"),
            )
            .hint(HintCode::RemoveImages),
            ImageError::Tool(error) | ImageError::Ext4(Ext4Error::Tool(error)) => unavailable(error),
            ImageError::Ext4(Ext4Error::Command(CommandError::Cancelled { .. })) => given_up(),
            ImageError::Ext4(_) | ImageError::File(_) | ImageError::Disk(_) | ImageError::Json(_) => {
                internal(error)
            }
        }
    }
}

impl From<KeptError> for ApiError {
    fn from(error: KeptError) -> ApiError {
        internal(&error)
    }
}

impl From<ArchiveError> for ApiError {
    fn from(error: ArchiveError) -> ApiError {
        ApiError::from(&error)
    }
}

impl From<&ArchiveError> for ApiError {
    fn from(error: &ArchiveError) -> ApiError {
        match error {
            ArchiveError::Refused { .. } | ArchiveError::Compression(_) | ArchiveError::Read { .. } => {
                of(ErrorCode::Malformed, error)
            }
            ArchiveError::Cancelled => given_up(),
            ArchiveError::Unpack { .. } => internal(error),
        }
    }
}

impl From<ImportError> for ApiError {
    fn from(error: ImportError) -> ApiError {
        match error {
            ImportError::Image(error) => error.into(),
            ImportError::Layout { source, .. } => {
                let text = format!("cannot import the image archive: {}", chain(&source));
                ApiError::new(ErrorCode::Malformed, shortened(text))
            }
        }
    }
}

impl From<PullError> for ApiError {
    fn from(error: PullError) -> ApiError {
        match error {
            PullError::Reference { .. } => of(ErrorCode::Malformed, &error),
            PullError::Registry { .. }
            | PullError::LayerType(_)
            | PullError::TooLarge { .. }
            | PullError::Config(_)
            | PullError::Image(
                ImageError::WrongLayer { .. }
                | ImageError::Archive(
                    ArchiveError::Refused { .. } | ArchiveError::Compression(_) | ArchiveError::Read { .. },
                ),
            ) => of(ErrorCode::UpstreamFailed, &error),
            PullError::Auth(error) => ApiError::new(
                ErrorCode::Unavailable,
                "cannot use the registry credentials in the daemon's Docker config file",
            )
            .hint(HintCode::RegistryCredentials)
            .detail(chain(&error)),
            PullError::Runtime(_) => internal(&error),
            PullError::Image(error) => error.into(),
        }
    }
}

impl From<DebianError> for ApiError {
    fn from(error: DebianError) -> ApiError {
        match error {
            DebianError::Suite(_) | DebianError::Package(_) | DebianError::Mirror(_) => {
                of(ErrorCode::Malformed, &error)
            }
            DebianError::Tool(error) => unavailable(&error),
            DebianError::Failed(_) | DebianError::Unreachable { .. } => of(ErrorCode::UpstreamFailed, &error),
            DebianError::Run(_) => internal(&error),
            DebianError::Image(error) => error.into(),
        }
    }
}

impl From<KernelStoreError> for ApiError {
    fn from(error: KernelStoreError) -> ApiError {
        ApiError::from(&error)
    }
}

impl From<&KernelStoreError> for ApiError {
    fn from(error: &KernelStoreError) -> ApiError {
        match error {
            KernelStoreError::Unknown(name) => {
                ApiError::new(ErrorCode::NotFound, format!("there is no kernel {name:?}"))
                    .hint(HintCode::ListKernels)
            }
            KernelStoreError::NoKernel(_) => {
                ApiError::new(ErrorCode::NotFound, "the daemon's host has no such kernel")
            }
            KernelStoreError::IsDefault(id) => {
                ApiError::new(ErrorCode::WrongState, format!("{id} is the default kernel"))
                    .hint(HintCode::ChooseKernel)
            }
            KernelStoreError::Shared(_) => of(ErrorCode::WrongState, error),
            KernelStoreError::Ambiguous(_)
            | KernelStoreError::Kernel { .. }
            | KernelStoreError::NoVersion(_)
            | KernelStoreError::OddEntry(_)
            | KernelStoreError::EmptyArchive => of(ErrorCode::Malformed, error),
            KernelStoreError::Modules(DependsError::Missing { name, .. }) => {
                let text = format!("the kernel has no module {name}, nor is it built in");
                ApiError::new(ErrorCode::Malformed, text)
            }
            KernelStoreError::Modules(DependsError::Read { .. }) => internal(error),
            KernelStoreError::Modules(error) => of(ErrorCode::Malformed, error),
            KernelStoreError::Archive(error) => error.into(),
            KernelStoreError::Package(PackageError::Command(CommandError::Cancelled { .. })) => given_up(),
            KernelStoreError::Package(
                PackageError::OtherDistribution(_) | PackageError::Tool(_) | PackageError::Unknown(_),
            ) => unavailable(error),
            KernelStoreError::Package(PackageError::Failed { .. } | PackageError::Unreachable(_)) => {
                of(ErrorCode::UpstreamFailed, error)
            }
            KernelStoreError::Package(PackageError::Command(_) | PackageError::File(_))
            | KernelStoreError::File(_) => internal(error),
        }
    }
}

impl From<BuildCacheError> for ApiError {
    fn from(error: BuildCacheError) -> ApiError {
        match error {
            BuildCacheError::Busy => of(ErrorCode::WrongState, &error).hint(HintCode::TryLater),
            BuildCacheError::Image(error) => error.into(),
            BuildCacheError::File(_) | BuildCacheError::Random(_) => internal(&error),
        }
    }
}

impl From<UnpackError> for ApiError {
    fn from(error: UnpackError) -> ApiError {
        match error {
            UnpackError::Archive(error) => error.into(),
            UnpackError::Context(error) => of_context("", error),
            UnpackError::NotText(_) | UnpackError::Parse(_) | UnpackError::Recipe(_) => {
                of(ErrorCode::BuildFailed, &error)
            }
            UnpackError::Cache(error) => error.into(),
        }
    }
}

fn of_context(place: &str, error: ContextError) -> ApiError {
    match error {
        ContextError::Read { path, source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
            ApiError::new(ErrorCode::BuildFailed, format!("{place}{path:?} is too large"))
        }
        ContextError::Read { .. } => internal(&error),
        error => ApiError::new(ErrorCode::BuildFailed, shortened(format!("{place}{}", chain(&error)))),
    }
}

impl From<BuildImageError> for ApiError {
    fn from(error: BuildImageError) -> ApiError {
        match error {
            BuildImageError::Step { dockerfile, source } => {
                let place = |line| format!("{}: line {line}: ", dockerfile.display());
                match *source {
                    BuildError::Cancelled => given_up(),
                    BuildError::Context { line, source } => of_context(&place(line), source),
                    BuildError::Runner { line, source } => of_run(&place(line), source),
                    error => {
                        let text = format!("{}: {}", dockerfile.display(), chain(&error));
                        ApiError::new(ErrorCode::BuildFailed, shortened(text))
                    }
                }
            }
            BuildImageError::Runner(error) => of_run("", error),
            BuildImageError::Cache(error) => error.into(),
            BuildImageError::Image(error) => error.into(),
            BuildImageError::Library(_) | BuildImageError::Flatten(_) => internal(&error),
        }
    }
}

fn of_run(place: &str, error: RunError) -> ApiError {
    let text = |error: &dyn Error| shortened(format!("{place}{}", chain(error)));
    match error {
        RunError::Failed { .. } | RunError::Refused(_) | RunError::Place(_) | RunError::Archive(_) => {
            ApiError::new(ErrorCode::BuildFailed, text(&error))
        }
        RunError::CutOff { .. } | RunError::Agent(_) => ApiError::new(ErrorCode::GuestFailed, text(&error)),
        RunError::Interrupted(_) | RunError::Guests(GuestsError::Interrupted(_)) => given_up(),
        RunError::Guests(GuestsError::Kernel(error)) => error.into(),
        RunError::Guests(GuestsError::Io(..)) | RunError::Io(..) => internal(&error),
        // No guest to be had at all: of a daemon that has its guests elsewhere, whose caller is the user who started it.
        RunError::Guests(error @ GuestsError::Other(_)) => of(ErrorCode::Unavailable, &error),
        RunError::Guests(_) => ApiError::new(
            ErrorCode::GuestFailed,
            format!("{place}the step's guest did not start or did not stop"),
        )
        .hint(HintCode::DaemonLog)
        .detail(chain(&error)),
        RunError::Cache(error) => error.into(),
        RunError::Image(error) => error.into(),
        RunError::Pull(error) => error.into(),
        RunError::Debian(error) => error.into(),
        RunError::Context(error) => of_context(place, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_the_caller_s_fault_and_a_full_disk_nobody_s() {
        let refused = ArchiveError::Compression("bzip2");
        assert_eq!(ApiError::from(refused).code(), ErrorCode::Malformed);
        let full =
            ArchiveError::Unpack { entry: "a".into(), source: io::Error::from(io::ErrorKind::StorageFull) };
        assert_eq!(ApiError::from(ImageError::from(full)).code(), ErrorCode::NoDisk);
        let other = ArchiveError::Unpack { entry: "a".into(), source: io::Error::other("x") };
        assert_eq!(ApiError::from(other).code(), ErrorCode::Internal);
        let upstream = PullError::Image(ArchiveError::Compression("bzip2").into());
        assert_eq!(ApiError::from(upstream).code(), ErrorCode::UpstreamFailed);
        assert_eq!(ApiError::from(ImageError::Shared("a".into())).code(), ErrorCode::WrongState);
    }

    #[test]
    fn a_build_says_where_it_failed() {
        let failed = RunError::Failed { status: "exit status 1".into(), output: "no".into(), hint: "" };
        let source = Box::new(BuildError::Runner { line: 3, source: failed });
        let error = ApiError::from(BuildImageError::Step { dockerfile: "Dockerfile".into(), source });
        assert_eq!(error.code(), ErrorCode::BuildFailed);
        assert!(error.to_string().starts_with("Dockerfile: line 3: the command ended with exit status 1"));
        let source = Box::new(BuildError::NoStage("x".into()));
        let error = ApiError::from(BuildImageError::Step { dockerfile: "Dockerfile".into(), source });
        assert_eq!(error.to_string(), "Dockerfile: there is no stage \"x\"");
    }

    #[test]
    fn paths_of_the_host_stay_here() {
        let missing = DependsError::Missing { name: "ext4".into(), directory: "/secret".into() };
        let read = ContextError::Read {
            root: "/secret".into(),
            path: "a".into(),
            source: io::ErrorKind::FileTooLarge.into(),
        };
        for error in [
            ApiError::from(KernelStoreError::from(missing)),
            ApiError::from(UnpackError::Context(read)),
            ApiError::from(ImageError::Disk(DiskError::Full {
                purpose: "a build",
                needed: 2,
                free: 1,
                directory: "/secret".into(),
            })),
        ] {
            assert!(!serde_json::to_string(error.body()).unwrap().contains("secret"), "{error:?}");
        }
    }
}
