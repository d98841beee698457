/** Waiting for something to change. */

/** Wakes all that wait. */
export class Changes {
  #waiting: (() => void)[] = [];

  /** Resolves at the next `wake`. */
  next(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const abort = () => reject(signal?.reason);
      signal?.addEventListener("abort", abort, { once: true });
      this.#waiting.push(() => {
        signal?.removeEventListener("abort", abort);
        resolve();
      });
    });
  }

  wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}
