/** Directories of this host as tar archives. */

import { createReadStream } from "node:fs";
import { lstat, readdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { FileError } from "./errors.js";

const BLOCK = 512;

/**
 * An archive of a directory, in pieces. All in it belongs to root: this host's users are not known in a guest. Sockets, devices and
 * pipes are left out.
 */
export async function* packed(directory: string): AsyncGenerator<Uint8Array, void, undefined> {
  yield* entry(directory, ".");
  yield new Uint8Array(2 * BLOCK);
}

async function* entry(path: string, name: string): AsyncGenerator<Uint8Array, void, undefined> {
  const found = await lstat(path);
  const about = { mode: found.mode & 0o7777, mtime: Math.max(0, Math.floor(found.mtimeMs / 1000)) };
  if (found.isSymbolicLink()) {
    yield* header({ name, kind: "2", size: 0, link: await readlink(path), ...about });
  } else if (found.isFile()) {
    yield* header({ name, kind: "0", size: found.size, link: "", ...about });
    yield* content(path, found.size);
  } else if (found.isDirectory()) {
    yield* header({ name: `${name}/`, kind: "5", size: 0, link: "", ...about });
    for (const child of (await readdir(path)).sort()) yield* entry(join(path, child), `${name}/${child}`);
  }
}

async function* content(path: string, size: number): AsyncGenerator<Uint8Array, void, undefined> {
  let left = size;
  if (size > 0) {
    // A file that grows meanwhile is sent as it was.
    for await (const piece of createReadStream(path, { end: size - 1 })) {
      left -= (piece as Uint8Array).byteLength;
      yield piece as Uint8Array;
    }
  }
  if (left !== 0) throw new FileError(`${path} changed while it was read`);
  yield new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}

interface Entry {
  name: string;
  kind: string;
  size: number;
  link: string;
  mode: number;
  mtime: number;
}

/** The header of an entry; before it, what a header has no room for. */
function* header(it: Entry): Generator<Uint8Array> {
  const records: string[] = [];
  if (Buffer.byteLength(it.name) > 100) records.push(record("path", it.name));
  if (Buffer.byteLength(it.link) > 100) records.push(record("linkpath", it.link));
  if (it.size >= 8 ** 11) records.push(record("size", String(it.size)));
  if (records.length) {
    const more = Buffer.from(records.join(""));
    yield block({ name: "./PaxHeaders", kind: "x", size: more.byteLength, link: "", mode: 0o644, mtime: 0 });
    yield more;
    yield new Uint8Array((BLOCK - (more.byteLength % BLOCK)) % BLOCK);
  }
  yield block(it);
}

/** A record of an extended header begins with its own length. */
function record(key: string, value: string): string {
  const rest = Buffer.byteLength(` ${key}=${value}\n`);
  let length = rest + String(rest).length;
  if (rest + String(length).length !== length) length = rest + String(length).length;
  return `${length} ${key}=${value}\n`;
}

function block(it: Entry): Uint8Array {
  const bytes = Buffer.alloc(BLOCK);
  const octal = (value: number, width: number) =>
    `${Math.min(value, 8 ** width - 1)
      .toString(8)
      .padStart(width, "0")}\0`;
  bytes.write(it.name, 0, 100);
  bytes.write(octal(it.mode, 7), 100);
  bytes.write(octal(0, 7), 108);
  bytes.write(octal(0, 7), 116);
  bytes.write(octal(it.size, 11), 124);
  bytes.write(octal(it.mtime, 11), 136);
  bytes.write("        ", 148);
  bytes.write(it.kind, 156);
  bytes.write(it.link, 157, 100);
  bytes.write("ustar\x0000", 257);
  const sum = bytes.reduce((total, byte) => total + byte, 0);
  bytes.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return bytes;
}
