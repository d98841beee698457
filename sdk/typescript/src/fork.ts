/** New sandboxes: of a snapshot or of a sandbox, they are made in one way. */

import type { RequestOptions } from "./call.js";
import { type Controller, given } from "./controller.js";
import type { CreateSandboxes, Egress, Limits, OnExpiry, SandboxInfo } from "./models.js";
import { seconds } from "./policy.js";

export interface ForkOptions extends RequestOptions {
  /** Seconds until they expire [default: 300]; `null` for never. */
  timeout?: number | null | undefined;
  /** What happens then [default: `end`]. */
  onExpiry?: OnExpiry | undefined;
  /** Whether requests to a paused sandbox resume it for another `timeout` [default: `false`]. */
  wakeOnTraffic?: boolean | undefined;
  /** Added to the environment of everything that is started in them. */
  envs?: Record<string, string> | undefined;
  /** The caller's own words, which lists can be filtered by. */
  metadata?: Record<string, string> | undefined;
  limits?: Limits | undefined;
  egress?: Egress | undefined;
}

/** Forks `n` sandboxes, all of them or none. */
export async function forked(
  controller: Controller,
  source: Pick<CreateSandboxes, "snapshot_tag" | "from_sandbox">,
  n: number,
  options: ForkOptions,
): Promise<SandboxInfo[]> {
  const { timeout = 300, onExpiry, wakeOnTraffic, envs, metadata, limits, egress, signal } = options;
  const ttl = seconds(timeout);
  const body: CreateSandboxes = {
    ...source,
    ...(n === 1 ? {} : { n }),
    ...(ttl === null ? {} : { ttl_secs: ttl }),
    ...given({ on_expiry: onExpiry, wake_on_traffic: wakeOnTraffic, env: envs, metadata, limits, egress }),
  };
  return (await controller.createSandboxes(body, { signal })).sandboxes;
}
