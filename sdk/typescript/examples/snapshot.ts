/**
 * Makes the snapshot `numpy` that the other examples begin with: an image, booted once, with numpy imported.
 *
 *   forkd image debian --include python3,python3-numpy,python3-matplotlib --tag numpy    makes the image
 */

import { NotFoundError, Snapshot } from "forkd";

const image = process.env["FORKD_IMAGE"] ?? "numpy";
const snapshot = await Snapshot.get("numpy").catch((error: unknown) => {
  if (!(error instanceof NotFoundError)) throw error;
  return Snapshot.create("numpy", image, {
    warmUp: "import numpy; samples = []",
    onProgress: (told) => console.log(" ", JSON.stringify(told)),
  });
});
console.log(`${snapshot.tag}: ${snapshot.info.memory_mib} MiB, ${snapshot.info.status}`);
