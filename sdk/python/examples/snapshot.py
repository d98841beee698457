"""Makes the snapshot `numpy` that the other examples begin with: an image, booted once, with numpy imported.

forkd image debian --include python3,python3-numpy,python3-matplotlib --tag numpy    makes the image
"""

import os

from forkd import NotFoundError, Snapshot, models


def show(progress: models.Progress) -> None:
    print(f"  {progress.step or progress.output}")


image = os.environ.get("FORKD_IMAGE", "numpy")
try:
    snapshot = Snapshot.get("numpy")
except NotFoundError:
    snapshot = Snapshot.create("numpy", image, warm_up="import numpy; samples = []", on_progress=show)
print(f"{snapshot.tag}: {snapshot.info.memory_mib} MiB, {snapshot.info.status}")
