/** Files of a sandbox. */

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import type { RequestOptions } from "./call.js";
import type { Controller } from "./controller.js";
import { FileError, SandboxFileNotFoundError } from "./errors.js";
import type { Executed, FileInfo } from "./models.js";
import { packed } from "./pack.js";
import * as requests from "./requests.js";
import type { Content } from "./transport.js";

export interface FileOptions extends RequestOptions {
  /** Whose rights count, and at whose directory relative paths begin. Without it, the image's user. */
  user?: string | undefined;
}

export interface ListFilesOptions extends FileOptions {
  /** The most that are listed. */
  limit?: number | undefined;
  /** Only those after this name. */
  after?: string | undefined;
}

const RENAME = 'if [ -d "$2" ]; then rmdir -- "$2" || exit; fi; mkdir -p -- "$(dirname -- "$2")" && mv -- "$1" "$2"';

/** The files of a sandbox. Relative paths begin at the user's directory. */
export class Files {
  readonly #controller: Controller;
  readonly #id: string;

  constructor(controller: Controller, sandboxId: string) {
    this.#controller = controller;
    this.#id = sandboxId;
  }

  /** The content of a file as text, as bytes, or in pieces as they come. */
  read(path: string, format?: "text", options?: FileOptions): Promise<string>;
  read(path: string, format: "bytes", options?: FileOptions): Promise<Uint8Array>;
  read(path: string, format: "stream", options?: FileOptions): Promise<AsyncGenerator<Uint8Array, void, undefined>>;
  async read(
    path: string,
    format: "text" | "bytes" | "stream" = "text",
    options: FileOptions = {},
  ): Promise<string | Uint8Array | AsyncGenerator<Uint8Array, void, undefined>> {
    const { transport } = this.#controller;
    const call = requests.readFile(this.#id, path, options.user);
    if (format === "stream") return transport.pieces(await transport.open(call, options));
    const content = await transport.send(call, options);
    return format === "text" ? new TextDecoder("utf-8", { ignoreBOM: true }).decode(content) : content;
  }

  /** Makes a file, or replaces one. Directories above it are made. */
  async write(path: string, data: Content, options: FileOptions = {}): Promise<FileInfo> {
    await this.#controller.transport.send(requests.writeFile(this.#id, path, options.user), options, data);
    return this.getInfo(path, options);
  }

  /** Makes several files. */
  async writeFiles(files: Iterable<{ path: string; data: Content }>, options: FileOptions = {}): Promise<FileInfo[]> {
    const written: FileInfo[] = [];
    for (const file of files) written.push(await this.write(file.path, file.data, options));
    return written;
  }

  /** Lists a directory, sorted by name. */
  async list(path: string, options: ListFilesOptions = {}): Promise<FileInfo[]> {
    const files: FileInfo[] = [];
    for await (const file of this.iterate(path, options)) files.push(file);
    return files;
  }

  /** The same, page by page as they are needed. */
  async *iterate(path: string, options: ListFilesOptions = {}): AsyncGenerator<FileInfo, void, undefined> {
    const { user, limit = Number.POSITIVE_INFINITY } = options;
    let { after } = options;
    let left = limit;
    while (left > 0) {
      const values = { user, limit: Number.isFinite(left) ? Math.min(left, 1000) : undefined, after };
      const page = await this.#controller.transport.send(requests.listFiles(this.#id, path, values), options);
      yield* page.files.slice(0, left);
      left -= page.files.length;
      if (!page.next) return;
      after = page.next;
    }
  }

  /** The metadata of a file. Links are followed. */
  getInfo(path: string, options: FileOptions = {}): Promise<FileInfo> {
    return this.#controller.transport.send(requests.fileInfo(this.#id, path, options.user), options);
  }

  /** Whether a file or directory exists. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.getInfo(path, options);
      return true;
    } catch (error) {
      if (error instanceof SandboxFileNotFoundError) return false;
      throw error;
    }
  }

  /** Makes a directory and those above it. Resolves to `false` if it exists. */
  async makeDir(path: string, options: FileOptions = {}): Promise<boolean> {
    if (await this.exists(path, options)) return false;
    refuse(await this.#run(["mkdir", "-p", "--", path], options), "the directory cannot be made");
    return true;
  }

  /** Moves a file or a directory. Directories above the new path are made, and a file that is there is replaced. */
  async rename(oldPath: string, newPath: string, options: FileOptions = {}): Promise<FileInfo> {
    await this.getInfo(oldPath, options);
    refuse(await this.#run(["/bin/sh", "-c", RENAME, "rename", oldPath, newPath], options), "the file cannot be moved");
    return this.getInfo(newPath, options);
  }

  /** Removes a file, or a directory with everything in it. */
  remove(path: string, options: FileOptions = {}): Promise<void> {
    return this.#controller.transport.send(requests.removeFile(this.#id, path, options.user), options);
  }

  /** A file or a directory as a tar archive, in pieces as they come. Its names begin with the path's last part. */
  async readArchive(path: string, options: FileOptions = {}): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    const { transport } = this.#controller;
    return transport.pieces(await transport.open(requests.readFile(this.#id, path, options.user, true), options));
  }

  /** Unpacks a tar archive into a directory, which is made if it is not there. */
  writeArchive(path: string, archive: Content, options: FileOptions = {}): Promise<void> {
    return this.#controller.transport.send(requests.writeFile(this.#id, path, options.user, true), options, archive);
  }

  /**
   * Copies a file of this host to a path; or a directory into one, which is made if it is not there.
   *
   * Without a user, what is in a directory belongs to root: this host's users are not the sandbox's.
   */
  async upload(local: string, path: string, options: FileOptions = {}): Promise<void> {
    const isFile = (await stat(local)).isFile();
    const call = requests.writeFile(this.#id, path, options.user, !isFile);
    await this.#controller.transport.send(call, options, isFile ? createReadStream(local) : packed(local));
  }

  #run(args: string[], options: FileOptions): Promise<Executed> {
    const body = { args, ...(options.user === undefined ? {} : { user: options.user }) };
    return this.#controller.execCommand(this.#id, body, options);
  }
}

function refuse(executed: Executed, what: string): void {
  if (executed.exit_code !== 0) throw new FileError(`${what}: ${executed.stderr.trim() || executed.exit_code}`);
}
