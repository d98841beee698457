//! The descriptors that go with a command, put in the order that it names.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use forkd_image::digest::Digest;
use forkd_image::images::ImageError;
use forkd_proto::control::{Command, Descriptor, Devices};

use super::{EngineError, Shared};
use crate::ids::LayerId;
use crate::own::{CONSOLE, VSOCK};
use crate::places::PlaceError;

/// Descriptors by what they are for.
#[derive(Debug, Default)]
pub struct Named(Vec<(Descriptor, OwnedFd)>);

impl Named {
    pub fn with(mut self, descriptor: Descriptor, file: impl Into<OwnedFd>) -> Named {
        self.0.push((descriptor, file.into()));
        self
    }

    /// In the order that the command names. What it does not name is closed; what is missing is noticed by the process.
    pub fn for_command(mut self, command: &Command) -> Vec<OwnedFd> {
        let take = |wanted: Descriptor| {
            let place = self.0.iter().position(|(descriptor, _)| *descriptor == wanted)?;
            Some(self.0.remove(place).1)
        };
        command.descriptors().into_iter().filter_map(take).collect()
    }

    /// What a new VM has for itself, in its directory.
    pub fn of_vm(devices: &Devices, directory: &Path) -> Result<Named, PlaceError> {
        let mut named = Named::default();
        if devices.console {
            named = named.with(Descriptor::Console, create(&directory.join(CONSOLE))?);
        }
        if devices.vsock.is_some() {
            let path = directory.join(VSOCK);
            let listener = UnixListener::bind(&path).map_err(PlaceError::at("listen at", &path))?;
            named = named.with(Descriptor::Vsock, listener);
        }
        if devices.entropy {
            let path = Path::new("/dev/urandom");
            named = named.with(Descriptor::Entropy, File::open(path).map_err(PlaceError::at("open", path))?);
        }
        Ok(named)
    }
}

fn create(path: &Path) -> Result<File, PlaceError> {
    let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    created.map_err(PlaceError::at("create", path))
}

impl Shared {
    /// The file system of an image, which is below the disks of all that were booted from it.
    pub(super) fn base(&self, image: &Digest) -> Result<File, EngineError> {
        let found = self.images.get(*image)?.ok_or_else(|| ImageError::Unknown(image.to_string()))?;
        let path = found.base();
        Ok(File::open(&path).map_err(PlaceError::at("open", &path))?)
    }

    /// A new, empty file for what a VM writes to its disk.
    pub(super) fn new_layer(&self) -> Result<(LayerId, File), EngineError> {
        let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
        let file = create(&self.places.layer(&id))?;
        Ok((id, file))
    }
}
