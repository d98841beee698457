//! The files of disks: images of the library, and layers of the engine's own.

use std::fs::{self, File};

use forkd_image::digest::Digest;
use forkd_image::images::ImageError;
use forkd_proto::control::Command;

use super::{EngineError, Shared};
use crate::blocking::in_place;
use crate::descriptors::{create, open};
use crate::ids::LayerId;
use crate::lasting::Lasting;
use crate::places::PlaceError;

impl Shared {
    /// The file system of an image, which is below the disks of all that were booted from it.
    pub(super) fn base(&self, image: &Digest) -> Result<File, EngineError> {
        in_place(|| {
            let found = self.images.get(*image)?.ok_or_else(|| ImageError::Unknown(image.to_string()))?;
            Ok(open(&found.base())?)
        })
    }

    /// Has a process read the newest of its frozen layers through a descriptor with which nobody can write: all that are forked
    /// from it inherit it.
    pub(super) async fn seal_newest(&self, process: &Lasting, layers: &[LayerId]) -> Result<(), EngineError> {
        let Some((newest, older)) = layers.split_last() else { return Ok(()) };
        process.control.call(Command::SettleDisk, &[]).await?;
        let file = in_place(|| open(&self.places.layer(newest)))?;
        let first = u16::try_from(older.len()).unwrap_or(u16::MAX);
        process.control.call(Command::ReplaceLayers { first, count: 1 }, &[file.into()]).await?;
        Ok(())
    }

    /// Makes the names of layers as safe as their contents. Called before a manifest or a record relies on them.
    pub(super) fn sync_layers(&self) -> Result<(), PlaceError> {
        let directory = self.places.layers();
        let synced = in_place(|| File::open(&directory).and_then(|opened| opened.sync_all()));
        synced.map_err(PlaceError::at("sync", &directory))
    }

    /// A new, empty file for what a VM writes to its disk.
    pub(super) fn new_layer(&self) -> Result<(LayerId, File), EngineError> {
        let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
        let file = in_place(|| create(&self.places.layer(&id)))?;
        Ok((id, file))
    }

    /// Removes the file of a layer that is nobody's. What cannot be removed now is removed by the next sweep.
    pub(super) fn remove_layer(&self, id: &LayerId) {
        let _ = in_place(|| fs::remove_file(self.places.layer(id)));
    }
}
