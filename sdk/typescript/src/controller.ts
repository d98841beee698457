/** Every request of the API, typed. */

import { tell } from "./handlers.js";
import type { Address } from "./address.js";
import { Helper, shared, wanted } from "./autostart.js";
import type { Call, RequestOptions } from "./call.js";
import { ConnectionFailedError, ProtocolError, fromBody } from "./errors.js";
import type * as models from "./models.js";
import { packed } from "./pack.js";
import { pause, RETRIES, USUAL } from "./policy.js";
import * as requests from "./requests.js";
import type { Handler } from "./results.js";
import type { Fetch, Verify } from "./runtime.js";
import { type Content, rest, Transport } from "./transport.js";

/** Which daemon to use, and how. */
export interface ControllerOptions {
  /** `unix:///path`, `http://host:port` or `https://host:port`. Without it, the daemon is found as the command line finds it. */
  address?: string | undefined;
  /** Without it, the token in FORKD_TOKEN_FILE or FORKD_TOKEN. */
  token?: string | undefined;
  /** Seconds the daemon may take to answer, if a request has no limit of its own [default: 60]. */
  timeout?: number | undefined;
  /** How often a repeatable request is repeated [default: 2]. */
  retries?: number | undefined;
  /** A file of certificates to trust, or `false` to trust all. */
  verify?: Verify | undefined;
  /** Used instead of the runtime's own `fetch`. */
  fetch?: Fetch | undefined;
  /**
   * Whether the first request starts a private daemon if none is running and no address is given [default: FORKD_AUTOSTART].
   * It ends, with all of its sandboxes, when its last client is closed or has exited.
   */
  autostart?: boolean | undefined;
}

/** Which sandboxes are listed. */
export interface ListSandboxes extends RequestOptions {
  state?: models.SandboxState | undefined;
  snapshotTag?: string | undefined;
  /** A filter by metadata, `key=value`. */
  metadata?: string | undefined;
}

/** Which events are told. Of several kinds of filters, an event must pass all. */
export interface EventOptions extends RequestOptions {
  /** The cursor of an event: what happened after it is told first. */
  after?: string | undefined;
  sandbox?: string | readonly string[] | undefined;
  snapshot?: string | readonly string[] | undefined;
  event?: string | readonly string[] | undefined;
}

export interface PullSnapshotOptions extends RequestOptions {
  /** Without it, the name that its sender gave it. */
  tag?: string | undefined;
  /** Whether a snapshot that is already stored under any tag is not pulled. */
  reuse?: boolean | undefined;
  /** A public key in PEM that must have signed it. */
  key?: string | undefined;
  credentials?: models.Credentials | undefined;
  onProgress?: Handler<models.LibraryProgress> | undefined;
}

export interface PushSnapshotOptions extends RequestOptions {
  /** A snapshot of a sandbox contains the memory of its user, and is pushed only with this. */
  yes?: boolean | undefined;
  /** Repositories of the same registry that may have parts of it. */
  mountFrom?: readonly string[] | undefined;
  /** The name under which it is added to the snapshots of the tag. A pull takes the first that fits its host. */
  variant?: string | undefined;
  credentials?: models.Credentials | undefined;
  onProgress?: Handler<models.LibraryProgress> | undefined;
}

export interface ProgressOptions extends RequestOptions {
  onProgress?: Handler<models.LibraryProgress> | undefined;
}

/** In the options of controllers that callers have not made. */
const SHARED = Symbol("shared");
const known = new Map<string, Controller>();
const VARIABLES = ["ADDRESS", "URL", "SOCKET", "HOME", "MACHINE", "TOKEN", "TOKEN_FILE", "AUTOSTART"].map(
  (name) => `FORKD_${name}`,
);

/** A daemon. `await using` ends its connections. */
export class Controller implements AsyncDisposable {
  /** @internal */
  readonly transport: Transport;

  readonly #helper: Helper | undefined;

  constructor(options: ControllerOptions = {}) {
    const { address, token, timeout = USUAL, retries = RETRIES, verify = true, fetch, autostart } = options;
    const isShared = SHARED in options;
    const helper = wanted(autostart, address) ? (isShared ? shared(token) : new Helper(token)) : undefined;
    // The helper that sandboxes share ends with this process, not when a caller closes its connections.
    this.#helper = isShared ? undefined : helper;
    this.transport = new Transport({ address, token, timeout, retries, verify, fetch, helper });
  }

  /** The default controller of sandboxes and snapshots. */
  static shared(options: Pick<ControllerOptions, "address" | "token"> = {}): Controller {
    const key = JSON.stringify([options.address, options.token, ...VARIABLES.map((name) => process.env[name])]);
    let controller = known.get(key);
    if (!controller) {
      const { address, token } = options;
      controller = new Controller({ address, token, [SHARED]: true } as ControllerOptions);
      known.set(key, controller);
    }
    return controller;
  }

  /** Where the daemon is. */
  address(options?: RequestOptions): Promise<Address> {
    return this.transport.address(options);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Closes all connections, and releases a daemon started by `autostart`. The next request connects again. */
  async close(): Promise<void> {
    await this.transport.close();
    this.#helper?.end();
  }

  /** Whether the daemon accepts requests. */
  health(options?: RequestOptions): Promise<models.Health> {
    return this.transport.send(requests.health(), options);
  }

  /** The caller's name, scope, project and limits, as the daemon sees them. */
  caller(options?: RequestOptions): Promise<models.Caller> {
    return this.transport.send(requests.caller(), options);
  }

  /** The versions of the daemon and of its API. */
  version(options?: RequestOptions): Promise<models.Version> {
    return this.transport.send(requests.version(), options);
  }

  /** The daemon's metrics, in the format of OpenMetrics. */
  metrics(options?: RequestOptions): Promise<string> {
    return this.transport.send(requests.metrics(), options);
  }

  /** The certificate of the daemon's own CA, in PEM, for verifying TLS on the daemon's port. */
  ca(options?: RequestOptions): Promise<string> {
    return this.transport.send(requests.ca(), options);
  }

  /** Files of the daemon that cannot be read. */
  async problems(options?: RequestOptions): Promise<models.Problem[]> {
    return (await this.transport.send(requests.problems(), options)).problems;
  }

  /** Whether a name is a snapshot's tag or a sandbox's id; a tag takes precedence. */
  resolveName(name: string, options?: RequestOptions): Promise<models.Named> {
    return this.transport.send(requests.resolveName(name), options);
  }

  /**
   * What happens from now on, or after a cursor, without an end.
   *
   * When the connection breaks, it is opened again where it was. Events that the daemon no longer has are told as `missed`. The
   * iterator fails when the connection has broken, without an event in between, more often than requests are repeated.
   */
  async *events(options: EventOptions = {}): AsyncGenerator<models.Event, void, undefined> {
    const { after, sandbox, snapshot, event, signal } = options;
    let cursor = after;
    let attempts = 0;
    while (true) {
      const values = { after: cursor, sandbox: many(sandbox), snapshot: many(snapshot), event: many(event) };
      let hasBegun = false;
      try {
        const answer = await this.transport.openOnce(requests.events(values), { signal });
        hasBegun = true;
        for await (const line of this.transport.lines(answer)) {
          const told = line as models.Event;
          cursor = told.cursor ?? cursor;
          attempts = 0;
          yield told;
        }
        // A daemon without cursors cannot say what was missed.
        if (cursor === undefined) return;
        throw new ConnectionFailedError("the daemon ended the stream of events", { hint: "its log may have the reason" });
      } catch (error) {
        attempts += 1;
        if ((hasBegun && cursor === undefined) || !this.transport.again(attempts, error)) throw error;
      }
      await rest(pause(attempts), signal);
    }
  }

  /** Forks sandboxes from a snapshot or from a sandbox: all of them or, unless `partial` is set, none. */
  createSandboxes(body: models.CreateSandboxes, options?: RequestOptions): Promise<models.CreatedSandboxes> {
    return this.transport.send(requests.createSandboxes(body), options);
  }

  /** All sandboxes, the oldest first, including recently ended ones. */
  async listSandboxes(options: ListSandboxes = {}): Promise<models.SandboxInfo[]> {
    const { state, snapshotTag, metadata, signal } = options;
    const sandboxes: models.SandboxInfo[] = [];
    let after: string | undefined;
    do {
      const call = requests.listSandboxes({ state, snapshot_tag: snapshotTag, metadata, limit: 1000, after });
      const page = await this.transport.send(call, { signal });
      sandboxes.push(...page.sandboxes);
      after = page.next ?? undefined;
    } while (after !== undefined);
    return sandboxes;
  }

  getSandbox(id: string, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.getSandbox(id), options);
  }

  /** Ends a sandbox and removes it. Its branches stay. */
  killSandbox(id: string, options?: RequestOptions): Promise<void> {
    return this.transport.send(requests.removeSandbox(id), options);
  }

  /** Makes a snapshot of a sandbox, which keeps running. With `wait`, the snapshot is on disk when this resolves. */
  branchSandbox(id: string, tag?: string, options: RequestOptions & { wait?: boolean } = {}): Promise<models.SnapshotInfo> {
    const { wait = true, ...rest } = options;
    return this.transport.send(requests.branchSandbox(id, { ...(tag === undefined ? {} : { tag }), wait }), rest);
  }

  /** Pauses a sandbox. */
  pauseSandbox(id: string, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.pauseSandbox(id), options);
  }

  /** Resumes a paused sandbox. */
  resumeSandbox(id: string, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.resumeSandbox(id), options);
  }

  /** Returns a sandbox to the state of one of its own branches. */
  rollbackSandbox(id: string, tag: string, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.rollbackSandbox(id, tag), options);
  }

  /** Changes when a sandbox expires: seconds from now, or `null` for never. */
  setSandboxTtl(id: string, ttlSecs: number | null, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.setTtl(id, ttlSecs), options);
  }

  /** Changes which addresses a sandbox may connect to. */
  setSandboxEgress(id: string, egress: models.Egress, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.setEgress(id, egress), options);
  }

  /** Changes the bandwidth limit of a sandbox, in MiB/s each way; `null` for the daemon's default. */
  setSandboxBandwidth(id: string, bandwidthMib: number | null, options?: RequestOptions): Promise<models.SandboxInfo> {
    return this.transport.send(requests.setBandwidth(id, { bandwidth_mib: bandwidthMib }), options);
  }

  /** The CPU time, memory, disk and network use of a sandbox. */
  sandboxStats(id: string, options?: RequestOptions): Promise<models.SandboxStats> {
    return this.transport.send(requests.stats(id), options);
  }

  /** The last bytes of a guest's console output [default: 65536]. */
  sandboxConsole(id: string, size?: number, options?: RequestOptions): Promise<string> {
    return this.transport.send(requests.sandboxConsole(id, size), options);
  }

  /** Runs a program in a sandbox and waits until it ends. */
  execCommand(id: string, body: models.Exec, options?: RequestOptions): Promise<models.Executed> {
    return this.transport.send(requests.execute(id, body), options);
  }

  /** Runs code in an interpreter of a sandbox, which keeps its state between calls. */
  evalCode(id: string, body: models.Eval, options?: RequestOptions): Promise<models.Evaluated> {
    return this.transport.send(requests.evaluate(id, body), options);
  }

  /** Whether the guest of a sandbox answers, and how long that took. */
  async pingSandbox(id: string, options?: RequestOptions): Promise<{ pong: true; round_trip_us: number }> {
    const begun = performance.now();
    await this.transport.send(requests.fileInfo(id, "/"), options);
    return { pong: true, round_trip_us: Math.round((performance.now() - begun) * 1000) };
  }

  /** Boots an image, or forks a snapshot, runs commands and code in it, and freezes it. */
  createSnapshot(
    body: models.CreateSnapshot,
    options: RequestOptions & { onProgress?: Handler<models.Progress> | undefined } = {},
  ): Promise<models.SnapshotInfo> {
    return this.#followed(requests.createSnapshot(body), "snapshot", options);
  }

  /** Makes a snapshot, unless one with the same contents exists, and gives it a name. */
  buildSnapshot(
    body: models.BuildSnapshot,
    options: RequestOptions & { onProgress?: Handler<models.Progress> | undefined } = {},
  ): Promise<models.BuiltSnapshot> {
    return this.#followed(requests.buildSnapshot(body), "built", options);
  }

  async listSnapshots(options?: RequestOptions): Promise<models.SnapshotInfo[]> {
    return (await this.transport.send(requests.listSnapshots(), options)).snapshots;
  }

  getSnapshot(tag: string, options?: RequestOptions): Promise<models.SnapshotInfo> {
    return this.transport.send(requests.getSnapshot(tag), options);
  }

  /**
   * Removes a snapshot, or an additional name of one. Resolves to what was removed, in order.
   *
   * With `cascade`, also removes the snapshots based on it. A snapshot with other names is removed only with `allNames`.
   */
  async deleteSnapshot(
    tag: string,
    options: RequestOptions & { cascade?: boolean; allNames?: boolean } = {},
  ): Promise<string[]> {
    const { cascade = false, allNames = false, signal } = options;
    const removed = await this.transport.send(requests.removeSnapshot(tag, cascade, allNames), { signal });
    return [...(removed?.removed ?? []), ...(removed?.names ?? [])];
  }

  /** The chain of snapshots that a snapshot is based on, and those based on it, with sizes on disk. */
  snapshotHistory(tag: string, options?: RequestOptions): Promise<models.SnapshotHistory> {
    return this.transport.send(requests.snapshotHistory(tag), options);
  }

  /** Reads and verifies every file of a snapshot and of the snapshots it is based on. */
  verifySnapshot(tag: string, options?: RequestOptions): Promise<models.SnapshotVerification> {
    return this.transport.send(requests.verifySnapshot(tag), options);
  }

  /** Removes snapshots that no sandbox or snapshot needs, least recently used first; with `dry_run`, only lists them. */
  pruneSnapshots(body: models.PruneSnapshots = {}, options?: RequestOptions): Promise<models.PrunedSnapshots> {
    return this.transport.send(requests.pruneSnapshots(body), options);
  }

  /** Makes a snapshot independent of those it is based on. */
  compactSnapshot(tag: string, options?: RequestOptions): Promise<models.SnapshotInfo> {
    return this.transport.send(requests.compactSnapshot(tag), options);
  }

  /** Makes a snapshot available to every project, or no longer. */
  publishSnapshot(tag: string, isPublic: boolean, options?: RequestOptions): Promise<models.SnapshotInfo> {
    return this.transport.send(requests.publishSnapshot(tag, { public: isPublic }), options);
  }

  /** The digest of the snapshot that a registry reference points to: what a signature covers. */
  resolveSnapshot(
    reference: string,
    options: RequestOptions & { credentials?: models.Credentials | undefined } = {},
  ): Promise<models.ResolvedSnapshot> {
    const { credentials, signal } = options;
    return this.transport.send(requests.resolveSnapshot({ reference, ...given({ credentials }) }), { signal });
  }

  /** Stores a signature of a snapshot in the snapshot's registry, as cosign does. The private key stays with the caller. */
  addSnapshotSignature(body: models.AddSnapshotSignature, options?: RequestOptions): Promise<models.SnapshotSignature> {
    return this.transport.send(requests.addSnapshotSignature(body), options);
  }

  /** Gives a snapshot another name; with `force`, moves the name from another snapshot. */
  addSnapshotName(tag: string, name: string, options: RequestOptions & { force?: boolean } = {}): Promise<models.SnapshotInfo> {
    const { force = false, signal } = options;
    return this.transport.send(requests.addSnapshotName(tag, name, force), { signal });
  }

  /** Removes a name of a snapshot; the snapshot stays. */
  removeSnapshotName(tag: string, name: string, options?: RequestOptions): Promise<models.SnapshotInfo | undefined> {
    return this.transport.send(requests.removeSnapshotName(tag, name), options);
  }

  /** A snapshot with everything it is based on, as a stream of pieces of an archive. */
  async saveSnapshot(tag: string, options?: RequestOptions): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    return this.transport.pieces(await this.transport.open(requests.saveSnapshot(tag), options));
  }

  /** Loads a snapshot from an archive. Without a tag, it gets the name under which it was saved. */
  loadSnapshot(archive: Content, options: ProgressOptions & { tag?: string | undefined } = {}): Promise<models.SnapshotInfo> {
    return this.#followed(requests.loadSnapshot(options.tag), "snapshot", options, archive);
  }

  /** Pulls a snapshot from a registry. Data that a failed pull has stored is not fetched again. */
  pullSnapshot(reference: string, options: PullSnapshotOptions = {}): Promise<models.SnapshotInfo> {
    const { tag, reuse, key, credentials } = options;
    const body = { reference, ...given({ tag, reuse, key, credentials }) };
    return this.#followed(requests.pullSnapshot(body), "snapshot", options);
  }

  /** Pushes a snapshot, with everything it is based on, to a registry. Data that the registry has is not sent again. */
  pushSnapshot(tag: string, reference: string, options: PushSnapshotOptions = {}): Promise<models.PushedSnapshot> {
    const { yes, mountFrom, variant, credentials } = options;
    const body = { reference, ...given({ yes, mount_from: mountFrom && [...mountFrom], variant, credentials }) };
    return this.#followed(requests.pushSnapshot(tag, body), "pushed", options);
  }

  /** The tags of a repository, with the snapshots they point to. */
  listRepository(
    repository: string,
    options: RequestOptions & { credentials?: models.Credentials | undefined } = {},
  ): Promise<models.RepositoryTags> {
    const { credentials, signal } = options;
    return this.transport.send(requests.listRepository({ repository, ...given({ credentials }) }), { signal });
  }

  async listImages(options?: RequestOptions): Promise<models.ImageSummary[]> {
    return (await this.transport.send(requests.listImages(), options)).images;
  }

  /** An image, by a name or its id. */
  getImage(image: string, options?: RequestOptions): Promise<models.ImageInfo> {
    return this.transport.send(requests.getImage(image), options);
  }

  /** Pulls an image from a registry. */
  pullImage(
    reference: string,
    options: ProgressOptions & { name?: string; credentials?: models.Credentials; sizeMib?: number } = {},
  ): Promise<models.ImageInfo> {
    const { name, credentials, sizeMib } = options;
    const body = { reference, ...given({ name, credentials, size_mib: sizeMib }) };
    return this.#followed(requests.pullImage(body), "image", options);
  }

  /** Makes a Debian image with these packages, without a registry. */
  debianImage(
    include: readonly string[] = [],
    options: ProgressOptions & { name?: string; suite?: string } = {},
  ): Promise<models.ImageInfo> {
    const { name, suite } = options;
    return this.#followed(requests.debianImage({ include: [...include], ...given({ name, suite }) }), "image", options);
  }

  /** Builds an image from the Dockerfile in a directory, which is sent as a whole. Each step runs in a guest. */
  buildImage(
    directory: string,
    options: ProgressOptions & { name?: string; dockerfile?: string; target?: string; noCache?: boolean } = {},
  ): Promise<models.ImageInfo> {
    const { name, dockerfile, target, noCache } = options;
    const call = requests.buildImage({ name, dockerfile, target, no_cache: noCache || undefined });
    return this.#followed(call, "image", options, packed(directory));
  }

  /** Imports an image from an archive, as `docker save` writes it. */
  importImage(archive: Content, name: string, options: ProgressOptions & { sizeMib?: number } = {}): Promise<models.ImageInfo> {
    const { sizeMib } = options;
    return this.#followed(requests.importImage({ name, size_mib: sizeMib }), "image", options, archive);
  }

  /** Removes cached build steps, and with `images` also unnamed images. */
  pruneImages(body: models.PruneImages = {}, options?: RequestOptions): Promise<models.PrunedImages> {
    return this.transport.send(requests.pruneImages(body), options);
  }

  /** Makes an image available to every project, or no longer. */
  publishImage(image: string, isPublic: boolean, options?: RequestOptions): Promise<models.ImageInfo> {
    return this.transport.send(requests.publishImage(image, { public: isPublic }), options);
  }

  /** Removes an image, or a name of it. Resolves to `undefined` if it was removed a moment ago. */
  removeImage(image: string, options?: RequestOptions): Promise<models.RemovedImage | undefined> {
    return this.transport.send(requests.removeImage(image), options);
  }

  async listKernels(options?: RequestOptions): Promise<models.Kernel[]> {
    return (await this.transport.send(requests.listKernels(), options)).kernels;
  }

  /** Adds the kernel of the daemon's host, or of its distribution. */
  addKernel(body: models.AddKernel = {}, options: ProgressOptions = {}): Promise<models.Kernel> {
    return this.#followed(requests.addKernel(body), "kernel", options);
  }

  /** Imports a kernel from an archive; with `isDefault`, makes it the default. */
  importKernel(archive: Content, options: ProgressOptions & { isDefault?: boolean } = {}): Promise<models.Kernel> {
    return this.#followed(requests.importKernel(options.isDefault ?? false), "kernel", options, archive);
  }

  /** Sets the default kernel. */
  chooseKernel(kernel: string, options?: RequestOptions): Promise<models.Kernel> {
    return this.transport.send(requests.chooseKernel({ kernel }), options);
  }

  /** Removes a kernel; with `force`, also the default one. Resolves to `undefined` if it was removed a moment ago. */
  removeKernel(kernel: string, options: RequestOptions & { force?: boolean } = {}): Promise<models.Kernel | undefined> {
    const { force = false, signal } = options;
    return this.transport.send(requests.removeKernel(kernel, force), { signal });
  }

  /** The last line of a stream that reports progress. */
  async #followed<T, P>(
    call: Call<T>,
    last: string,
    options: RequestOptions & { onProgress?: Handler<P> | undefined },
    content?: Content,
  ): Promise<T> {
    const answer = await this.transport.stream(call, options, content);
    for await (const line of this.transport.lines(answer)) {
      if (line["error"]) throw fromBody(line["error"] as Record<string, unknown>, undefined, answer.requestId);
      if (line[last]) return line[last] as T;
      if (["snapshot", "built", "image", "kernel", "pushed"].some((name) => line[name])) {
        throw new ProtocolError(`the daemon's last line has no ${last}`);
      }
      await tell(options.onProgress, line as P);
    }
    throw new ProtocolError("the daemon ended the connection before its last line");
  }
}

/** The fields that have a value: the API distinguishes a field that is absent from one that is not. */
export function given<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const set = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(set) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

function many(value: string | readonly string[] | undefined): readonly string[] | undefined {
  return typeof value === "string" ? [value] : value;
}
