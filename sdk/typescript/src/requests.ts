/** Every request of the API that this client makes, one function each. */

import {
  accepting,
  asBytes,
  asNothing,
  asText,
  BYTES,
  type Call,
  carrying,
  get,
  LINES,
  make,
  parsed,
  part,
  post,
  put,
  query,
  remove,
  repeatable,
  TAR,
  type Values,
  within,
} from "./call.js";
import { foreign, InvalidArgumentError } from "./errors.js";
import type * as models from "./models.js";
import { GRACE, LONG, USUAL } from "./policy.js";

const UNLIMITED = Number.POSITIVE_INFINITY;

export const health = () => get<models.Health>("/healthz");
export const version = () => get<models.Version>("/version");
export const caller = () => get<models.Caller>("/v1/caller");
export const metrics = () => accepting("*/*", asText, get("/metrics"));
export const ca = () => accepting("*/*", asText, get("/v1/ca"));
export const problems = () => get<models.ProblemList>("/v1/problems");

/** A stream without an end. */
export const events = (values: Values) => within(UNLIMITED, accepting(LINES, asNothing, get("/v1/events", values)));

export const createSandboxes = (body: models.CreateSandboxes) =>
  within(LONG, make<models.CreatedSandboxes>("/v1/sandboxes", body));
export const listSandboxes = (values: Values) => get<models.SandboxList>("/v1/sandboxes", values);
export const getSandbox = (id: string) => get<models.SandboxInfo>(sandbox(id));
export const removeSandbox = (id: string) => nothing(remove(sandbox(id)));
export const branchSandbox = (id: string, body: models.BranchSandbox) =>
  within(LONG, make<models.SnapshotInfo>(sandbox(id, "/branch"), body));
export const pauseSandbox = (id: string) => repeatable(post<models.SandboxInfo>(sandbox(id, "/pause")));
export const resumeSandbox = (id: string) => repeatable(post<models.SandboxInfo>(sandbox(id, "/resume")));
export const rollbackSandbox = (id: string, tag: string) =>
  within(LONG, post<models.SandboxInfo>(sandbox(id, "/rollback"), { tag } satisfies models.Rollback));
export const setTtl = (id: string, seconds: number | null) =>
  put<models.SandboxInfo>(sandbox(id, "/ttl"), (seconds === null ? {} : { ttl_secs: seconds }) satisfies models.SetTtl);
export const setEgress = (id: string, egress: models.Egress) => put<models.SandboxInfo>(sandbox(id, "/egress"), egress);
export const setBandwidth = (id: string, body: models.SetBandwidth) => put<models.SandboxInfo>(sandbox(id, "/bandwidth"), body);
export const stats = (id: string) => get<models.SandboxStats>(sandbox(id, "/stats"));
export const sandboxConsole = (id: string, size?: number) =>
  accepting("text/plain", asText, get(sandbox(id, "/console"), { bytes: size }));

export const execute = (id: string, body: models.Exec) =>
  within((body.timeout_secs ?? 30) + GRACE, post<models.Executed>(sandbox(id, "/exec"), body));
export const evaluate = (id: string, body: models.Eval) =>
  within((body.timeout_secs ?? 30) + GRACE, post<models.Evaluated>(sandbox(id, "/eval"), body));
/** The path of a WebSocket. */
export const interact = (id: string) => sandbox(id, "/exec");

export const listContexts = (id: string) => list<models.CodeContext>(get(sandbox(id, "/contexts")));
export const createContext = (id: string, body: models.CreateCodeContext) =>
  post<models.CodeContext>(sandbox(id, "/contexts"), body);
export const removeContext = (id: string, context: string) => nothing(remove(`${sandbox(id, "/contexts/")}${part(context)}`));
export const restartContext = (id: string, context: string) =>
  nothing(post(`${sandbox(id, "/contexts/")}${part(context)}/restart`));
export const interruptContext = (id: string, context: string, grace?: number) =>
  within(
    LONG,
    post<models.Interrupted>(
      `${sandbox(id, "/contexts/")}${part(context)}/interrupt`,
      grace === undefined ? {} : { grace_secs: grace },
    ),
  );

export const listProcesses = (id: string) => list<models.Process>(get(sandbox(id, "/processes")));
export const startProcess = (id: string, body: models.StartProcess) =>
  post<models.StartedProcess>(sandbox(id, "/processes"), body);
/** The path of a WebSocket, or of a stream of ExecEvent. */
export const connectProcess = (id: string, pid: number) => sandbox(id, `/processes/${number(pid)}`);
export const signalProcess = (id: string, pid: number, signal: models.Signal) =>
  nothing(post(sandbox(id, `/processes/${number(pid)}/signal`), { signal } satisfies models.SendSignal));
/** What the process reads comes with the call. The daemon waits a minute for the process to take it. */
export const processStdin = (id: string, pid: number, close: boolean) =>
  within(
    USUAL + GRACE,
    carrying(BYTES, nothing(post(sandbox(id, `/processes/${number(pid)}/stdin`) + query({ close: close || undefined })))),
  );

export const readFile = (id: string, path: string, user?: string, archive = false) =>
  accepting(archive ? TAR : BYTES, asBytes, get(sandbox(id, "/files"), { path, user }));
/** What is written comes with the call. */
export const writeFile = (id: string, path: string, user?: string, archive = false) =>
  carrying(archive ? TAR : BYTES, nothing({ ...post(sandbox(id, "/files") + query({ path, user })), method: "PUT" }));
export const removeFile = (id: string, path: string, user?: string) => nothing(remove(sandbox(id, "/files"), { path, user }));
export const fileInfo = (id: string, path: string, user?: string) =>
  get<models.FileInfo>(sandbox(id, "/files/info"), { path, user });
export const listFiles = (id: string, path: string, values: Values) =>
  get<models.FileList>(sandbox(id, "/files/list"), { path, ...values });

/** The path at which a port of a sandbox is. */
export function proxy(id: string, port: number, path: string): string {
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new InvalidArgumentError(`${port} is not a port (1-65535)`);
  return sandbox(id, `/proxy/${port}/${path.replace(/^\/+/, "")}`);
}

export const createSnapshot = (body: models.CreateSnapshot) =>
  within(UNLIMITED, make<models.SnapshotInfo>("/v1/snapshots", body));
export const buildSnapshot = (body: models.BuildSnapshot) =>
  within(UNLIMITED, make<models.BuiltSnapshot>("/v1/snapshots/build", body));
export const listSnapshots = () => get<models.SnapshotList>("/v1/snapshots");
export const getSnapshot = (tag: string) => get<models.SnapshotInfo>(snapshot(tag));
export const removeSnapshot = (tag: string, cascade: boolean, allNames: boolean) =>
  remove<models.RemovedSnapshots>(snapshot(tag), { cascade: cascade || undefined, all_names: allNames || undefined });
export const snapshotHistory = (tag: string) => get<models.SnapshotHistory>(snapshot(tag, "/history"));
export const verifySnapshot = (tag: string) => within(UNLIMITED, post<models.SnapshotVerification>(snapshot(tag, "/verify")));
export const compactSnapshot = (tag: string) => within(UNLIMITED, post<models.SnapshotInfo>(snapshot(tag, "/compact")));
export const publishSnapshot = (tag: string, body: models.Publish) => put<models.SnapshotInfo>(snapshot(tag, "/public"), body);
export const pruneSnapshots = (body: models.PruneSnapshots) =>
  within(UNLIMITED, post<models.PrunedSnapshots>("/v1/snapshots/prune", body));
export const resolveSnapshot = (body: models.ResolveSnapshot) =>
  within(UNLIMITED, repeatable(post<models.ResolvedSnapshot>("/v1/snapshots/resolve", body)));
/** A key that has signed does not sign again. */
export const addSnapshotSignature = (body: models.AddSnapshotSignature) =>
  within(UNLIMITED, repeatable(post<models.SnapshotSignature>("/v1/snapshots/signatures", body)));
export const addSnapshotName = (tag: string, name: string, force: boolean): Call<models.SnapshotInfo> => ({
  ...get<models.SnapshotInfo>(snapshot(tag, `/names/${part(name)}`), { force: force || undefined }),
  method: "PUT",
});
export const removeSnapshotName = (tag: string, name: string) =>
  remove<models.SnapshotInfo>(snapshot(tag, `/names/${part(name)}`));
/** The answer is read in pieces. */
export const saveSnapshot = (tag: string) => within(UNLIMITED, accepting(TAR, asBytes, get(snapshot(tag, "/archive"))));
/** The archive comes with the call. */
export const loadSnapshot = (tag?: string) =>
  within(UNLIMITED, carrying(BYTES, post<models.SnapshotInfo>(`/v1/snapshots/load${query({ tag })}`)));
export const pullSnapshot = (body: models.PullSnapshot) =>
  within(UNLIMITED, make<models.SnapshotInfo>("/v1/snapshots/pull", body));
export const pushSnapshot = (tag: string, body: models.PushSnapshot) =>
  within(UNLIMITED, make<models.PushedSnapshot>(snapshot(tag, "/push"), body));
export const listRepository = (body: models.ListRepository) =>
  within(UNLIMITED, repeatable(post<models.RepositoryTags>("/v1/snapshots/repository", body)));
export const resolveName = (name: string) => get<models.Named>(`/v1/names/${part(name)}`);

export const listImages = () => get<models.ImageList>("/v1/images");
export const getImage = (image: string) => get<models.ImageInfo>(`/v1/images/${part(image)}`);
export const pullImage = (body: models.PullImage) => within(UNLIMITED, make<models.ImageInfo>("/v1/images/pull", body));
export const debianImage = (body: models.DebianImage) => within(UNLIMITED, make<models.ImageInfo>("/v1/images/debian", body));
/** What is built comes with the call, as an archive. */
export const buildImage = (values: Values) =>
  within(UNLIMITED, carrying(TAR, post<models.ImageInfo>(`/v1/images/build${query(values)}`)));
/** The archive comes with the call. */
export const importImage = (values: Values) =>
  within(UNLIMITED, carrying(BYTES, post<models.ImageInfo>(`/v1/images/import${query(values)}`)));
export const pruneImages = (body: models.PruneImages) => within(UNLIMITED, post<models.PrunedImages>("/v1/images/prune", body));
export const publishImage = (image: string, body: models.Publish) =>
  put<models.ImageInfo>(`/v1/images/${part(image)}/public`, body);
export const removeImage = (image: string) => remove<models.RemovedImage>(`/v1/images/${part(image)}`);

export const listKernels = () => get<models.KernelList>("/v1/kernels");
export const addKernel = (body: models.AddKernel) => within(UNLIMITED, make<models.Kernel>("/v1/kernels", body));
/** The archive comes with the call. */
export const importKernel = (isDefault: boolean) =>
  within(UNLIMITED, carrying(TAR, post<models.Kernel>(`/v1/kernels/import${query({ default: isDefault || undefined })}`)));
export const chooseKernel = (body: models.ChooseKernel) => put<models.Kernel>("/v1/kernels/default", body);
export const removeKernel = (kernel: string, force: boolean) =>
  remove<models.Kernel>(`/v1/kernels/${part(kernel)}`, { force: force || undefined });

function sandbox(id: string, below = ""): string {
  return `/v1/sandboxes/${part(id)}${below}`;
}

function snapshot(tag: string, below = ""): string {
  return `/v1/snapshots/${part(tag)}${below}`;
}

function number(pid: number): number {
  if (!Number.isInteger(pid) || pid < 1) throw new InvalidArgumentError(`${pid} is not a process id`);
  return pid;
}

function nothing(call: Call<unknown>): Call<void> {
  return { ...call, read: asNothing };
}

function list<T>(call: Call<unknown>): Call<T[]> {
  const read = (body: Uint8Array) => {
    const value = parsed(body);
    if (!Array.isArray(value)) throw foreign();
    return value as T[];
  };
  return { ...call, read };
}
