/** Waiting for something to change. */

/** Wakes all that wait. */
export class Changes {
  #waiting = new Set<() => void>();

  /** Resolves at the next `wake`. */
  next(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const woken = () => {
        signal?.removeEventListener("abort", abort);
        resolve();
      };
      const abort = () => {
        this.#waiting.delete(woken);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort, { once: true });
      this.#waiting.add(woken);
    });
  }

  wake(): void {
    const waiting = this.#waiting;
    this.#waiting = new Set();
    for (const resolve of waiting) resolve();
  }
}
