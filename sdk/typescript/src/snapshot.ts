/** Snapshots: what sandboxes are forked from. */

import { createReadStream, createWriteStream } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import type { RequestOptions } from "./call.js";
import { Controller, given, type ProgressOptions, type PullSnapshotOptions, type PushSnapshotOptions } from "./controller.js";
import { ProtocolError } from "./errors.js";
import { type ForkOptions, forked } from "./fork.js";
import type {
  Cpu,
  CreateSnapshot,
  Credentials,
  Progress,
  PushedSnapshot,
  ReadyProbe,
  RepositoryTags,
  SnapshotHistoryEntry,
  SnapshotInfo,
  SnapshotVerification,
  WarmUp,
} from "./models.js";
import type { Handler } from "./results.js";
import { Sandbox } from "./sandbox.js";
import type { Content } from "./transport.js";

interface Shared extends RequestOptions {
  controller?: Controller | undefined;
}

/** What runs in a guest before it is frozen. */
export interface Preparation {
  /** Shell commands, run as root before `warmUp`; if one fails, no snapshot is made. */
  run?: readonly string[] | undefined;
  /** Code that runs before the freeze; a string is Python. */
  warmUp?: string | readonly WarmUp[] | undefined;
  envs?: Record<string, string> | undefined;
}

export interface SnapshotContents extends Preparation {
  /** A program that runs from the start. */
  start?: readonly string[] | undefined;
  ready?: ReadyProbe | undefined;
  vcpus?: number | undefined;
  memoryMib?: number | undefined;
  diskMib?: number | undefined;
  /** Whether the guest has a network device [default: true]. */
  network?: boolean | undefined;
  kernel?: string | undefined;
  /** The CPU model of the guest [default: host]: the host's, or a feature level, so that the snapshot runs on other hosts. */
  cpu?: Cpu | undefined;
  /** Whether the guest has the certificates and proxy settings of the daemon's host; that needs the scope admin. */
  hostCerts?: boolean | undefined;
  /** Whether commands, files and code belong to the user `user`, in /home/user, as in E2B. */
  e2b?: boolean | undefined;
}

export interface CreateSnapshotOptions extends Shared, SnapshotContents {
  /** Whether the snapshot is on disk when this resolves [default: true]; it can be forked from before that. */
  wait?: boolean | undefined;
  onProgress?: Handler<Progress> | undefined;
}

export interface BuildSnapshotOptions extends Shared, SnapshotContents {
  /** Either `image` or `snapshot`; with a snapshot, only `run`, `warmUp` and `envs`. */
  image?: string | undefined;
  snapshot?: string | Snapshot | undefined;
  /** Whether it is made even if one exists. */
  noCache?: boolean | undefined;
  onProgress?: Handler<Progress> | undefined;
}

/** A frozen guest. `info` is the state in the daemon's last answer. */
export class Snapshot {
  constructor(
    readonly controller: Controller,
    public info: SnapshotInfo,
  ) {}

  get tag(): string {
    return this.info.tag;
  }

  /** Boots an image, runs commands and code in it, and freezes it. */
  static async create(tag: string, image: string, options: CreateSnapshotOptions = {}): Promise<Snapshot> {
    const { controller = Controller.shared(), wait = true, onProgress, signal } = options;
    const body = { image, tag, wait, ...contents(options) };
    return new Snapshot(controller, await controller.createSnapshot(body, { onProgress, signal }));
  }

  /**
   * Makes a snapshot of an image or of another snapshot, or finds the one with the same contents.
   *
   * The name is moved to it from the snapshot that was built under it before, which stays.
   */
  static async build(name: string, options: BuildSnapshotOptions): Promise<Snapshot> {
    const { controller = Controller.shared(), image, snapshot, noCache, onProgress, signal } = options;
    const based = snapshot instanceof Snapshot ? snapshot.tag : snapshot;
    const body = {
      name,
      contents: { ...given({ image, snapshot: based }), ...contents(options) },
      ...(noCache ? { no_cache: true } : {}),
    };
    const built = await controller.buildSnapshot(body, { onProgress, signal });
    if (!built.snapshot) throw new ProtocolError("the daemon has built a snapshot and does not name it");
    return new Snapshot(controller, built.snapshot);
  }

  /** Makes a snapshot of a sandbox, which keeps running. */
  static async fromSandbox(
    sandbox: string | Sandbox,
    tag?: string,
    options: Shared & { wait?: boolean } = {},
  ): Promise<Snapshot> {
    const { wait = true, signal } = options;
    if (typeof sandbox !== "string") return sandbox.branch(tag, { wait, signal });
    const controller = options.controller ?? Controller.shared();
    return new Snapshot(controller, await controller.branchSandbox(sandbox, tag, { wait, signal }));
  }

  /** A snapshot by its tag, or another of its names. */
  static async get(tag: string, options: Shared = {}): Promise<Snapshot> {
    const controller = options.controller ?? Controller.shared();
    return new Snapshot(controller, await controller.getSnapshot(tag, options));
  }

  /** All snapshots. */
  static async list(options: Shared = {}): Promise<Snapshot[]> {
    const controller = options.controller ?? Controller.shared();
    return (await controller.listSnapshots(options)).map((info) => new Snapshot(controller, info));
  }

  /** Loads a snapshot that `save` has written: the path of a file, or its content. */
  static async load(
    archive: string | Exclude<Content, string>,
    tag?: string,
    options: ProgressOptions & Shared = {},
  ): Promise<Snapshot> {
    const controller = options.controller ?? Controller.shared();
    const content = typeof archive === "string" ? createReadStream(archive, { highWaterMark: 1 << 18 }) : archive;
    return new Snapshot(controller, await controller.loadSnapshot(content, { ...options, tag }));
  }

  /** Pulls a snapshot from a registry. Data that a failed pull has stored is not fetched again. */
  static async pull(reference: string, tag?: string, options: PullSnapshotOptions & Shared = {}): Promise<Snapshot> {
    const controller = options.controller ?? Controller.shared();
    return new Snapshot(controller, await controller.pullSnapshot(reference, { ...options, tag }));
  }

  /** The tags of a repository, with the snapshots they point to. */
  static listRepository(
    repository: string,
    options: Shared & { credentials?: Credentials | undefined } = {},
  ): Promise<RepositoryTags> {
    return (options.controller ?? Controller.shared()).listRepository(repository, options);
  }

  /** It and everything it is based on, as a stream of pieces of an archive. */
  archive(options?: RequestOptions): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    return this.controller.saveSnapshot(this.tag, options);
  }

  /**
   * Writes it and everything it is based on to a file, which appears when it is complete. Only its owner can read the file: it has
   * the memory of the guest.
   */
  async save(path: string, options?: RequestOptions): Promise<void> {
    options?.signal?.throwIfAborted();
    const part = `${path}.part`;
    // What was left there may be anybody's, or a link.
    await rm(part, { force: true });
    try {
      await pipeline(await this.archive(options), createWriteStream(part, { flags: "wx", mode: 0o600 }));
      await rename(part, path);
    } catch (error) {
      await rm(part, { force: true });
      throw error;
    }
  }

  /** Pushes it, with everything it is based on, to a registry. Data that the registry has is not sent again. */
  push(reference: string, options?: PushSnapshotOptions): Promise<PushedSnapshot> {
    return this.controller.pushSnapshot(this.tag, reference, options);
  }

  /** Requests its current state. */
  async refresh(options?: RequestOptions): Promise<SnapshotInfo> {
    this.info = await this.controller.getSnapshot(this.tag, options);
    return this.info;
  }

  /** Forks `n` sandboxes from it, all of them or none. */
  async fork(n = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const children = await forked(this.controller, { snapshot_tag: this.tag }, n, options);
    return children.map((info) => new Sandbox(this.controller, info));
  }

  /** Makes a snapshot based on this one, after running commands and code. */
  async derive(
    tag: string,
    options: RequestOptions & Preparation & { wait?: boolean; onProgress?: Handler<Progress> } = {},
  ): Promise<Snapshot> {
    const { wait = true, onProgress, signal } = options;
    const body = { snapshot: this.tag, tag, wait, ...contents(options) };
    return new Snapshot(this.controller, await this.controller.createSnapshot(body, { onProgress, signal }));
  }

  /** The chain of snapshots it is based on, itself, and the snapshots based on it. */
  async history(options?: RequestOptions): Promise<SnapshotHistoryEntry[]> {
    return (await this.controller.snapshotHistory(this.tag, options)).snapshots;
  }

  /** Reads and verifies every file of it and of the snapshots it is based on. */
  verify(options?: RequestOptions): Promise<SnapshotVerification> {
    return this.controller.verifySnapshot(this.tag, options);
  }

  /** Makes it independent of the snapshots it is based on. */
  async compact(options?: RequestOptions): Promise<SnapshotInfo> {
    this.info = await this.controller.compactSnapshot(this.tag, options);
    return this.info;
  }

  /** Gives it another name; with `force`, moves the name from another snapshot. */
  async addName(name: string, options?: RequestOptions & { force?: boolean }): Promise<SnapshotInfo> {
    this.info = await this.controller.addSnapshotName(this.tag, name, options);
    return this.info;
  }

  /** Removes one of its names. */
  async removeName(name: string, options?: RequestOptions): Promise<SnapshotInfo> {
    this.info = (await this.controller.removeSnapshotName(this.tag, name, options)) ?? (await this.refresh(options));
    return this.info;
  }

  /**
   * Removes it; with `cascade`, also the snapshots based on it. Resolves to what was removed, in order.
   *
   * A snapshot with other names is removed only with `allNames`.
   */
  delete(options?: RequestOptions & { cascade?: boolean; allNames?: boolean }): Promise<string[]> {
    return this.controller.deleteSnapshot(this.tag, options);
  }
}

/** What a snapshot is made of, as the API has it. */
function contents(options: SnapshotContents): CreateSnapshot {
  const { run, warmUp, start, ready, envs, vcpus, memoryMib, diskMib, network, kernel, cpu, hostCerts, e2b } = options;
  return given({
    run: run && [...run],
    warm_up: typeof warmUp === "string" ? [{ code: warmUp, language: "python" as const }] : warmUp && [...warmUp],
    start: start && [...start],
    ready,
    env: envs,
    vcpus,
    memory_mib: memoryMib,
    disk_mib: diskMib,
    network,
    kernel,
    cpu,
    host_certs: hostCerts,
    e2b,
  });
}
