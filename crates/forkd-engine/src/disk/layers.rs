//! The files of disks: images of the library, and layers of the engine's own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use forkd_image::digest::Digest;
use forkd_image::images::ImageError;
use forkd_proto::control::{Command, Disk};

use crate::blocking::in_place;
use crate::disk::writers::{Writers, writers};
use crate::engine::Shared;
use crate::error::EngineError;
use crate::fault;
use crate::ids::LayerId;
use crate::paths::PathError;
use crate::process::VmProcess;
use crate::process::descriptors::{create, open};
use crate::record::largest_top;

/// What a process may take to close a descriptor after it has said so: another thread may be at work with it, and a program that the
/// daemon starts has all of the daemon's own descriptors for a moment.
const GIVING_UP: Duration = Duration::from_secs(2);
/// Between two looks.
const MOST_PAUSE: Duration = Duration::from_millis(50);

impl Shared {
    /// The file system of an image, which is below the disks of all that were booted from it.
    pub(crate) fn base(&self, image: &Digest) -> Result<File, EngineError> {
        in_place(|| {
            let found = self.images.get(*image)?.ok_or_else(|| ImageError::Unknown(image.to_string()))?;
            Ok(open(&found.base())?)
        })
    }

    /// Makes sure that no process can write to frozen layers of disks any more. The processes, which have all of them in this order, are
    /// told to read them through descriptors that are for reading only, and to close those that they wrote them with; then the kernel
    /// is asked whether they did. `sealed` are those that are known to be so; it gets the others.
    pub(crate) async fn seal(
        &self,
        processes: &[&VmProcess],
        disks: &[Vec<LayerId>],
        sealed: &mut BTreeSet<LayerId>,
    ) -> Result<(), EngineError> {
        let mut completed = false;
        let mut all = Vec::new();
        for (disk, layers) in disks.iter().enumerate() {
            all.extend(layers.iter().enumerate().map(|(place, id)| (disk, place, id)));
        }
        for (disk, place, id) in all.into_iter().filter(|(_, _, id)| !sealed.contains(*id)) {
            let file = in_place(|| open(&self.paths.layer(id)))?;
            if self.writers(&file)? != Writers::None {
                let disk = u8::try_from(disk).unwrap_or(u8::MAX);
                let first = u16::try_from(place).unwrap_or(u16::MAX);
                for process in processes {
                    if !completed {
                        process.control.call(Command::SettleDisk, &[]).await?;
                    }
                    let file = file.try_clone().map_err(EngineError::io("open a file again"))?;
                    let command = Command::ReplaceLayers { disk, first, count: 1 };
                    process.control.call(command, &[file.into()]).await?;
                }
                completed = true;
                self.given_up(&file, id).await?;
            }
            if let Some(quotas) = &self.project_quotas {
                // One that stays in its project is as large as it is, and nothing else is in that.
                let _ = in_place(|| quotas.release(&file));
            }
        }
        sealed.clone_from(&disks.iter().flatten().cloned().collect());
        Ok(())
    }

    /// Waits until no process can write to a layer any more, which all were told to close.
    pub(crate) async fn given_up(&self, file: &File, id: &LayerId) -> Result<(), EngineError> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        while self.writers(file)? == Writers::Some {
            if begun.elapsed() > GIVING_UP {
                return Err(EngineError::LayerKept(id.clone()));
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MOST_PAUSE);
        }
        Ok(())
    }

    /// Whether the kernel can say who can write to a layer.
    pub(crate) fn knows_writers(&self) -> Result<bool, EngineError> {
        let (id, file) = self.empty_layer()?;
        let writers = self.writers(&file);
        let path = self.paths.layer(&id);
        fs::remove_file(&path).map_err(PathError::at("remove", &path))?;
        Ok(writers? != Writers::Unknown)
    }

    fn writers(&self, file: &File) -> Result<Writers, EngineError> {
        writers(file).map_err(EngineError::io("find out who can write to a disk layer"))
    }

    /// Makes the names of layers as safe as their contents. Called before a manifest or a record relies on them.
    pub(crate) fn sync_layers(&self) -> Result<(), PathError> {
        let directory = self.paths.layers();
        let synced = in_place(|| {
            fault::sync(&directory)?;
            File::open(&directory)?.sync_all()
        });
        synced.map_err(PathError::at("sync", &directory))
    }

    /// New, empty files for what a VM writes to its disks, one for each. All of them, or none.
    pub(crate) fn new_tops(&self, disks: &[Disk]) -> Result<Vec<(LayerId, File)>, EngineError> {
        let mut tops: Vec<(LayerId, File)> = Vec::new();
        for disk in disks {
            match self.new_top(disk) {
                Ok(top) => tops.push(top),
                Err(error) => {
                    tops.iter().for_each(|(id, _)| self.remove_layer(id));
                    return Err(error);
                }
            }
        }
        Ok(tops)
    }

    /// One that holds no more than it may, where the kernel can see to that.
    fn new_top(&self, disk: &Disk) -> Result<(LayerId, File), EngineError> {
        let (id, file) = self.empty_layer()?;
        if let (Some(quotas), Some(bytes)) = (&self.project_quotas, largest_top(disk))
            && let Err(error) = in_place(|| quotas.limit(&file, bytes))
        {
            self.remove_layer(&id);
            return Err(EngineError::io("limit a disk layer")(error));
        }
        Ok((id, file))
    }

    fn empty_layer(&self) -> Result<(LayerId, File), EngineError> {
        let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
        let file = in_place(|| create(&self.paths.layer(&id)))?;
        Ok((id, file))
    }

    /// Removes the file of an unused layer. What cannot be removed now is removed by the next sweep.
    pub(crate) fn remove_layer(&self, id: &LayerId) {
        let _ = in_place(|| fs::remove_file(self.paths.layer(id)));
    }
}
