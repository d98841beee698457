/** Callbacks of callers. */

import type { Handler } from "./results.js";

/** Tells a handler something, if there is one, and waits for it. */
export async function tell<T>(handler: Handler<T> | undefined, told: T): Promise<void> {
  await handler?.(told);
}
