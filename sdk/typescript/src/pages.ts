/** Lists of sandboxes, page by page. */

import type { RequestOptions } from "./call.js";
import type { Controller } from "./controller.js";
import type { SandboxInfo, SandboxState } from "./models.js";
import * as requests from "./requests.js";

/** The signal ends an iteration. */
export interface SandboxFilter extends RequestOptions {
  /** Without it, all that have not ended. */
  state?: SandboxState | undefined;
  metadata?: Record<string, string> | undefined;
  /** The tag of the snapshot they were forked from. */
  snapshot?: string | undefined;
  /** How many a page has at most. */
  limit?: number | undefined;
}

/** Sandboxes, the oldest first. Iterate over it, or call `nextItems()` as long as it `hasNext`. */
export class SandboxPaginator implements AsyncIterable<SandboxInfo> {
  hasNext = true;
  readonly #controller: Controller;
  readonly #filter: SandboxFilter;
  #after: string | undefined;

  constructor(controller: Controller, filter: SandboxFilter) {
    this.#controller = controller;
    this.#filter = filter;
  }

  /** The next page, which may be empty. */
  async nextItems(options?: RequestOptions): Promise<SandboxInfo[]> {
    if (!this.hasNext) return [];
    const { state, snapshot, limit, metadata = {} } = this.#filter;
    // The daemon looks for one word of metadata; the others are looked for here.
    const first = Object.entries(metadata)[0];
    const call = requests.listSandboxes({
      state,
      snapshot_tag: snapshot,
      metadata: first?.join("="),
      limit,
      after: this.#after,
    });
    const page = await this.#controller.transport.send(call, options);
    this.#after = page.next ?? undefined;
    this.hasNext = this.#after !== undefined;
    return page.sandboxes.filter((info) => this.#isWanted(info));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SandboxInfo, void, undefined> {
    const { signal } = this.#filter;
    signal?.throwIfAborted();
    while (this.hasNext) yield* await this.nextItems({ signal });
  }

  #isWanted(info: SandboxInfo): boolean {
    const { state, metadata = {} } = this.#filter;
    const isThere = state !== undefined || info.state !== "ended";
    return isThere && Object.entries(metadata).every(([key, value]) => info.metadata[key] === value);
  }
}
