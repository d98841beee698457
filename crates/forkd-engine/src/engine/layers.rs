//! The files of disks: images of the library, and layers of the engine's own.

use std::fs::File;

use forkd_image::digest::Digest;
use forkd_image::images::ImageError;

use super::{EngineError, Shared};
use crate::descriptors::{create, open};
use crate::ids::LayerId;

impl Shared {
    /// The file system of an image, which is below the disks of all that were booted from it.
    pub(super) fn base(&self, image: &Digest) -> Result<File, EngineError> {
        let found = self.images.get(*image)?.ok_or_else(|| ImageError::Unknown(image.to_string()))?;
        Ok(open(&found.base())?)
    }

    /// A new, empty file for what a VM writes to its disk.
    pub(super) fn new_layer(&self) -> Result<(LayerId, File), EngineError> {
        let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
        let file = create(&self.places.layer(&id))?;
        Ok((id, file))
    }
}
