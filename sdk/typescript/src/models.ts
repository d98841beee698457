/**
 * The types of forkd's API, with the names of their fields there.
 *
 * `sdk/typescript/generate` writes this file from docs/openapi.json. Change nothing here.
 */

export type AddKernel = components["schemas"]["AddKernel"];
export type AddSnapshotSignature = components["schemas"]["AddSnapshotSignature"];
export type Archive = components["schemas"]["Archive"];
export type BranchSandbox = components["schemas"]["BranchSandbox"];
export type BuildOutcome = components["schemas"]["BuildOutcome"];
export type BuildSnapshot = components["schemas"]["BuildSnapshot"];
export type BuiltSnapshot = components["schemas"]["BuiltSnapshot"];
export type Caller = components["schemas"]["Caller"];
export type ChooseKernel = components["schemas"]["ChooseKernel"];
export type CodeContext = components["schemas"]["CodeContext"];
export type Counted = components["schemas"]["Counted"];
export type Cpu = components["schemas"]["Cpu"];
export type CreateCodeContext = components["schemas"]["CreateCodeContext"];
export type CreateSandboxes = components["schemas"]["CreateSandboxes"];
export type CreateSnapshot = components["schemas"]["CreateSnapshot"];
export type CreateTiming = components["schemas"]["CreateTiming"];
export type CreatedSandboxes = components["schemas"]["CreatedSandboxes"];
export type Credentials = components["schemas"]["Credentials"];
export type DebianImage = components["schemas"]["DebianImage"];
export type Displayed = components["schemas"]["Displayed"];
export type DropReason = components["schemas"]["DropReason"];
export type Egress = components["schemas"]["Egress"];
export type EgressMode = components["schemas"]["EgressMode"];
export type EndReason = components["schemas"]["EndReason"];
export type Ended = components["schemas"]["Ended"];
export type ErrorBody = components["schemas"]["ErrorBody"];
export type ErrorCode = components["schemas"]["ErrorCode"];
export type Eval = components["schemas"]["Eval"];
export type EvalError = components["schemas"]["EvalError"];
export type EvalEvent = components["schemas"]["EvalEvent"];
export type Evaluated = components["schemas"]["Evaluated"];
export type Event = components["schemas"]["Event"];
export type Exec = components["schemas"]["Exec"];
export type ExecEvent = components["schemas"]["ExecEvent"];
export type ExecInput = components["schemas"]["ExecInput"];
export type ExecStart = components["schemas"]["ExecStart"];
export type Executed = components["schemas"]["Executed"];
export type FileInfo = components["schemas"]["FileInfo"];
export type FileKind = components["schemas"]["FileKind"];
export type FileList = components["schemas"]["FileList"];
export type Health = components["schemas"]["Health"];
export type HintCode = components["schemas"]["HintCode"];
export type ImageInfo = components["schemas"]["Image"];
export type ImageConfig = components["schemas"]["ImageConfig"];
export type ImageList = components["schemas"]["ImageList"];
export type ImageRecipe = components["schemas"]["ImageRecipe"];
export type ImageSource = components["schemas"]["ImageSource"];
export type ImageSummary = components["schemas"]["ImageSummary"];
export type Interrupt = components["schemas"]["Interrupt"];
export type Interrupted = components["schemas"]["Interrupted"];
export type Kernel = components["schemas"]["Kernel"];
export type KernelList = components["schemas"]["KernelList"];
export type KernelSource = components["schemas"]["KernelSource"];
export type KvmStats = components["schemas"]["KvmStats"];
export type Language = components["schemas"]["Language"];
export type LibraryProgress = components["schemas"]["LibraryProgress"];
export type Limits = components["schemas"]["Limits"];
export type ListRepository = components["schemas"]["ListRepository"];
export type Named = components["schemas"]["Named"];
export type NetworkStats = components["schemas"]["NetworkStats"];
export type OnExpiry = components["schemas"]["OnExpiry"];
export type Problem = components["schemas"]["Problem"];
export type ProblemList = components["schemas"]["ProblemList"];
export type Process = components["schemas"]["Process"];
export type Progress = components["schemas"]["Progress"];
export type PruneImages = components["schemas"]["PruneImages"];
export type PruneSnapshots = components["schemas"]["PruneSnapshots"];
export type PrunedImages = components["schemas"]["PrunedImages"];
export type PrunedSnapshot = components["schemas"]["PrunedSnapshot"];
export type PrunedSnapshots = components["schemas"]["PrunedSnapshots"];
export type Publish = components["schemas"]["Publish"];
export type PullImage = components["schemas"]["PullImage"];
export type PullSnapshot = components["schemas"]["PullSnapshot"];
export type PushSnapshot = components["schemas"]["PushSnapshot"];
export type PushedSnapshot = components["schemas"]["PushedSnapshot"];
export type ReadyProbe = components["schemas"]["ReadyProbe"];
export type RemovedImage = components["schemas"]["RemovedImage"];
export type RemovedSnapshots = components["schemas"]["RemovedSnapshots"];
export type RepositoryTag = components["schemas"]["RepositoryTag"];
export type RepositoryTags = components["schemas"]["RepositoryTags"];
export type ResolveSnapshot = components["schemas"]["ResolveSnapshot"];
export type ResolvedSnapshot = components["schemas"]["ResolvedSnapshot"];
export type Rollback = components["schemas"]["Rollback"];
export type SandboxInfo = components["schemas"]["Sandbox"];
export type SandboxList = components["schemas"]["SandboxList"];
export type SandboxState = components["schemas"]["SandboxState"];
export type SandboxStats = components["schemas"]["SandboxStats"];
export type Scope = components["schemas"]["Scope"];
export type SendSignal = components["schemas"]["SendSignal"];
export type SetBandwidth = components["schemas"]["SetBandwidth"];
export type SetTtl = components["schemas"]["SetTtl"];
export type Signal = components["schemas"]["Signal"];
export type SnapshotInfo = components["schemas"]["Snapshot"];
export type SnapshotDamage = components["schemas"]["SnapshotDamage"];
export type SnapshotHistory = components["schemas"]["SnapshotHistory"];
export type SnapshotHistoryEntry = components["schemas"]["SnapshotHistoryEntry"];
export type SnapshotKind = components["schemas"]["SnapshotKind"];
export type SnapshotList = components["schemas"]["SnapshotList"];
export type SnapshotMemory = components["schemas"]["SnapshotMemory"];
export type SnapshotSignature = components["schemas"]["SnapshotSignature"];
export type SnapshotSize = components["schemas"]["SnapshotSize"];
export type SnapshotStatus = components["schemas"]["SnapshotStatus"];
export type SnapshotVerification = components["schemas"]["SnapshotVerification"];
export type StartProcess = components["schemas"]["StartProcess"];
export type StartedProcess = components["schemas"]["StartedProcess"];
export type StepTiming = components["schemas"]["StepTiming"];
export type TcpPort = components["schemas"]["TcpPort"];
export type TerminalSize = components["schemas"]["TerminalSize"];
export type TokenLimits = components["schemas"]["TokenLimits"];
export type Transfer = components["schemas"]["Transfer"];
export type Version = components["schemas"]["Version"];
export type WarmUp = components["schemas"]["WarmUp"];
export type What = components["schemas"]["What"];

export interface components {
    schemas: {
        /** @description Adds a kernel of the daemon's host. */
        AddKernel: {
            /** @description Whether to make it the default. */
            default?: boolean;
            source?: components["schemas"]["KernelSource"];
            /** @description The version, for the host's own kernels [default: the newest]. */
            version?: string | null;
        };
        /** @description Adds a signature to a snapshot in a registry. The client makes it with its private key. */
        AddSnapshotSignature: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description The public key in PEM (ECDSA P-256). The signature is checked with it. */
            key: string;
            /** @description The signed JSON, in cosign's simple signing format. At most 64 KiB. */
            payload: string;
            /** @description The signed snapshot, by digest: `registry.example/team/app@sha256:…`. */
            reference: string;
            /** @description The ECDSA signature of the payload's SHA-256, as base64 of DER. */
            signature: string;
        };
        /**
         * Format: binary
         * @description An archive that is sent as the body of a request.
         */
        Archive: string;
        /** @description Makes a snapshot of a sandbox, which keeps running. */
        BranchSandbox: {
            /** @description The snapshot's tag [default: a generated one]. */
            tag?: string | null;
            /** @description Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked. */
            wait?: boolean;
        };
        /**
         * @description What a build did, or would do.
         * @enum {string}
         */
        BuildOutcome: "unchanged" | "reused" | "made";
        /** @description Builds a snapshot: makes it unless one with the same contents exists, and gives it a name. */
        BuildSnapshot: {
            /** @description The inputs, without a tag: the tag is the name with digits of the key. */
            contents: components["schemas"]["CreateSnapshot"];
            /** @description Whether to make nothing and only report what would be made. */
            dry_run?: boolean;
            /**
             * @description The name: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was built under this name
             *     before loses the name, but is not removed.
             */
            name: string;
            /** @description Whether to make it again even if a snapshot with the same contents exists. */
            no_cache?: boolean;
        };
        /** @description The result of a build. */
        BuiltSnapshot: {
            /** @description The digest of its inputs. Missing if the snapshot that it is based on would have to be made first. */
            key?: string | null;
            name: string;
            outcome: components["schemas"]["BuildOutcome"];
            /** @description The tag of the snapshot that had the name before, if it was another one. */
            replaced?: string | null;
            snapshot?: components["schemas"]["Snapshot"] | null;
        };
        /** @description The caller of a request. */
        Caller: {
            /** @description The limits on the objects it creates. */
            limits?: components["schemas"]["TokenLimits"];
            /** @description `token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token. */
            name: string;
            /** @description The project of the objects it creates. */
            project: string;
            scope: components["schemas"]["Scope"];
        };
        /** @description Chooses the default. */
        ChooseKernel: {
            /** @description A name or a unique prefix of one, such as a version. */
            kernel: string;
        };
        /** @description An interpreter with its state, which code in it shares. */
        CodeContext: {
            /** @description Whether code is running in it. */
            busy: boolean;
            cwd: string;
            id: string;
            /** @description The language's name, as in Eval; other agents may have other languages. */
            language: string;
        };
        /** @description The resource usage of a sandbox at two points of its creation. */
        Counted: {
            /** @description When its guest had its identity and was ready. */
            ready: components["schemas"]["SandboxStats"];
            /** @description When its VM was running. */
            running: components["schemas"]["SandboxStats"];
        };
        /**
         * @description The CPU model of a guest.
         * @enum {string}
         */
        Cpu: "host" | "x86-64-v2" | "x86-64-v3";
        /** @description Makes a context and starts its interpreter. */
        CreateCodeContext: {
            /** @description The working directory [default: the user's home directory]. */
            cwd?: string | null;
            language?: components["schemas"]["Language"];
        };
        /** @description Creates sandboxes in one operation. */
        CreateSandboxes: {
            /** @description Whether to measure the resource usage of each sandbox during the creation, which makes it slower. */
            counted?: boolean;
            egress?: components["schemas"]["Egress"] | null;
            /** @description Added to the environment of every program started in them. */
            env?: {
                [key: string]: string;
            };
            /** @description A sandbox to copy. It is branched and keeps running; the branch is removed when the copies exist. */
            from_sandbox?: string | null;
            limits?: components["schemas"]["Limits"];
            /** @description Arbitrary keys and values, which lists can be filtered by. */
            metadata?: {
                [key: string]: string;
            };
            /**
             * Format: int32
             * @description The number of sandboxes.
             * @default 1
             */
            n?: number;
            /** @description What to do when they expire. */
            on_expiry?: components["schemas"]["OnExpiry"];
            /** @description Whether to keep the sandboxes that started when others fail. */
            partial?: boolean;
            /** @description The snapshot to fork from. */
            snapshot_tag?: string | null;
            /**
             * @description What to fork: the snapshot with this name, or else the sandbox with this id. Give exactly one of `source`, `snapshot_tag`
             *     and `from_sandbox`.
             */
            source?: string | null;
            /**
             * Format: int64
             * @description Seconds until they expire.
             */
            ttl_secs?: number | null;
            /** @description Whether requests to a paused sandbox (code, commands, files, ports) resume it for another `ttl_secs`. */
            wake_on_traffic?: boolean;
        };
        /**
         * @description Boots an image or forks a snapshot, runs commands and code in the guest, and takes a snapshot of it. Needs exactly one of
         *     `image` and `snapshot`.
         */
        CreateSnapshot: {
            /** @description The CPU model of the guest. A snapshot with a level runs on every host that has the level. */
            cpu?: components["schemas"]["Cpu"];
            /**
             * Format: int64
             * @description The disk space that its sandboxes can write.
             */
            disk_mib?: number | null;
            /**
             * @description Whether to set the guest up for E2B clients: commands, files and code run as the user `user` unless a call names another, in
             *     /home/user, with passwordless sudo, on any image.
             */
            e2b?: boolean;
            env?: {
                [key: string]: string;
            };
            /**
             * @description Whether to pass the CA certificates and proxy settings of the daemon's host to the guest, for hosts behind an intercepting
             *     proxy: in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one. Needs the scope admin.
             */
            host_certs?: boolean;
            /** @description The name or id of an image. */
            image?: string | null;
            /** @description The id or version of a kernel [default: the default kernel]. */
            kernel?: string | null;
            /** Format: int64 */
            memory_mib?: number | null;
            /**
             * @description Whether the guest has a network device. Without one, its sandboxes can only be reached through the daemon.
             * @default true
             */
            network?: boolean;
            ready?: components["schemas"]["ReadyProbe"] | null;
            /** @description Commands to run in order, as root with `sh -c`, before `warm_up`. The request fails if one of them fails. */
            run?: string[];
            /**
             * @description A snapshot to base the new one on, which stores only the difference. Needs a tag. The guest's configuration is inherited: of
             *     the other fields, only `env`, `run`, `warm_up` and `wait` can be given.
             */
            snapshot?: string | null;
            /** @description A program to start when the guest boots. */
            start?: string[] | null;
            /**
             * @description The tag. Without one, it is derived from the inputs, and the snapshot is made only once: equal requests get the same
             *     snapshot, also while it is still being made.
             */
            tag?: string | null;
            /** Format: int32 */
            vcpus?: number | null;
            /**
             * @description Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked.
             * @default true
             */
            wait?: boolean;
            /** @description Code to run in order before the snapshot is taken. */
            warm_up?: components["schemas"]["WarmUp"][];
        };
        /** @description How long it took since the request was admitted. */
        CreateTiming: {
            /**
             * Format: int64
             * @description Until every guest had its identity and was ready.
             */
            ready_us: number;
            /**
             * Format: int64
             * @description Until every VM was running.
             */
            restored_us: number;
            /** @description The time of each step, without gaps. Steps that begin with `identity.` are parts of the step `identity`. */
            steps?: components["schemas"]["StepTiming"][];
        };
        /** @description The result of a request for sandboxes. */
        CreatedSandboxes: {
            /** @description The measured usage of each sandbox, if requested, in no particular order. */
            counted?: components["schemas"]["Counted"][];
            /** @description The errors of those that failed, with `partial`. */
            failures?: components["schemas"]["ErrorBody"][];
            sandboxes: components["schemas"]["Sandbox"][];
            timing: components["schemas"]["CreateTiming"];
        };
        /** @description Credentials for a registry. They are neither stored nor logged. */
        Credentials: {
            password: string;
            username: string;
        };
        /** @description Makes a Debian image from Debian packages. */
        DebianImage: {
            /** @description Packages to add to the minimal system. */
            include?: string[];
            /** @description The package mirror: an http:// or https:// address. */
            mirror?: string | null;
            /** @description The name of the image [default: derived from the suite and the packages]. */
            name?: string | null;
            /**
             * Format: int64
             * @description The minimum size of the file system.
             */
            size_mib?: number | null;
            /** @default bookworm */
            suite?: string;
        };
        /** @description A value that was displayed. */
        Displayed: {
            /** @description The value in each of its MIME types. Binary data is in base64. */
            data: {
                [key: string]: string;
            };
            /** @description Whether it is the value of the last expression. */
            main: boolean;
        };
        /**
         * @description Why a packet or name was dropped.
         * @enum {string}
         */
        DropReason: "refused" | "spoofed" | "over_limit";
        /** @description Where a sandbox may send packets. The host and other sandboxes are never reachable. */
        Egress: {
            /**
             * @description Destinations allowed in the mode `list`, and in the mode `allow` in spite of `deny`: networks (`10.1.0.0/16`), addresses,
             *     names (`example.com`, `*.example.com`), each optionally with ports (`example.com:443`, `10.0.0.7:80,8000-8100`,
             *     `[2001:db8::/32]:443`).
             */
            allow?: string[];
            /** @description Networks (`8.8.8.0/24`) and addresses that are blocked in the mode `allow`. `allow` takes precedence. */
            deny?: string[];
            mode: components["schemas"]["EgressMode"];
        };
        /** @enum {string} */
        EgressMode: "allow" | "deny" | "list";
        /** @enum {string} */
        EndReason: "shutdown" | "reset" | "kernel_panic" | "failed" | "killed" | "out_of_memory" | "expired";
        /** @description Why a VM has ended. */
        Ended: {
            /** Format: int64 */
            at_unix: number;
            detail: string;
            reason: components["schemas"]["EndReason"];
        };
        /** @description The body of every response with a status of 400 or more. */
        ErrorBody: {
            /** @description What failed, as a code. */
            code: components["schemas"]["ErrorCode"];
            /** @description What failed, as text. */
            error: string;
            /** @description What to do about it, as text. */
            hint?: string | null;
            hint_code?: components["schemas"]["HintCode"] | null;
        };
        /**
         * @description Each code always comes with the same status.
         * @enum {string}
         */
        ErrorCode: "malformed" | "unauthorized" | "forbidden" | "permission_denied" | "not_trusted" | "not_found" | "file_not_found" | "method_not_allowed" | "request_timeout" | "name_taken" | "has_dependents" | "wrong_state" | "sandbox_ended" | "idempotency_mismatch" | "is_directory" | "not_directory" | "too_large" | "unsupported_media_type" | "range_not_satisfiable" | "build_failed" | "too_many" | "guest_failed" | "port_closed" | "upstream_failed" | "guest_timeout" | "no_memory" | "no_disk" | "guest_disk_full" | "unavailable" | "internal";
        /** @description Runs code in an interpreter that keeps its state. */
        Eval: {
            code: string;
            /** @description The context to use [default: the language's default one]. */
            context?: string | null;
            env?: {
                [key: string]: string;
            };
            language?: components["schemas"]["Language"];
            /**
             * Format: int64
             * @default 30
             */
            timeout_secs?: number;
        };
        /** @description An error raised by the code. */
        EvalError: {
            name: string;
            traceback: string;
            value: string;
        };
        /** @description A line of the streamed response (`Accept: application/x-ndjson`). */
        EvalEvent: {
            stdout: string;
        } | {
            stderr: string;
        } | {
            result: components["schemas"]["Displayed"];
        } | {
            /** @description The code raised an error. `ended` follows. */
            raised: components["schemas"]["EvalError"];
        } | {
            /** @description The last line. */
            ended: {
                /** @description Whether it was interrupted because it timed out. */
                timed_out: boolean;
                /** @description Whether output was cut because it was too large. */
                truncated: boolean;
            };
        } | {
            /** @description The last line: the stream failed before the end. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description The result of code. */
        Evaluated: {
            error?: components["schemas"]["EvalError"] | null;
            /** @description The value of the last expression, as text. */
            result?: string | null;
            /** @description Everything that was displayed, by MIME type, including the last expression. */
            results: {
                [key: string]: string;
            }[];
            stderr: string;
            stdout: string;
            /** @description Whether it was interrupted because it timed out. The output until then is included. */
            timed_out?: boolean;
            /** @description Whether output was cut because it did not fit into the response. */
            truncated: boolean;
        };
        /** @description An event. */
        Event: components["schemas"]["What"] & {
            /** Format: int64 */
            at_unix_ms: number;
            /** @description A position in the stream: pass it as `after` to continue after this event. */
            cursor?: string;
        };
        /** @description Runs a program and waits until it ends. */
        Exec: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description The stdin of the program. */
            stdin?: string | null;
            /**
             * Format: int64
             * @default 30
             */
            timeout_secs?: number;
            /** @description The user that runs it [default: the image's]. */
            user?: string | null;
        };
        /** @description A line of the streamed response (`Accept: application/x-ndjson`). Bytes are in base64. */
        ExecEvent: {
            started: {
                /** Format: int32 */
                pid: number;
            };
        } | {
            stdout: string;
        } | {
            stderr: string;
        } | {
            /**
             * @description Bytes of stdin that the program has read, or will never read, since the last such event. Only over a WebSocket, and only
             *     with `stdin_window`.
             */
            stdin_taken: {
                /** Format: int64 */
                bytes: number;
            };
        } | {
            /** @description The last line: the program has ended. */
            exited: {
                /** Format: int32 */
                exit_code: number;
                timed_out: boolean;
            };
        } | {
            /** @description The last line: the stream failed before the end. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description A text message of a client after the first one. Stdin is sent in binary messages. */
        ExecInput: {
            /** @description The terminal's new size. */
            resize: components["schemas"]["TerminalSize"];
        } | {
            /** @description Sends a signal to the program and its process group. */
            signal: components["schemas"]["Signal"];
        } | "close_stdin";
        /** @description Starts an interactive program: the client's first message, as text. */
        ExecStart: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description Stdin that precedes the binary messages. */
            stdin?: string | null;
            /**
             * @description Whether to send `stdin_taken` events. While a client has sent at most 1 MiB more in binary messages than these report, the
             *     daemon keeps reading its messages even if the program does not read: signals, resizes and a disconnect take effect at once.
             *     Without these events, the daemon stops reading from a client that has sent more than 1 MiB until the program reads.
             */
            stdin_window?: boolean;
            /**
             * Format: int64
             * @description Seconds until it is killed [default: 30; with a terminal, 86400].
             */
            timeout_secs?: number | null;
            tty?: components["schemas"]["TerminalSize"] | null;
            /** @description The user that runs it [default: the image's]. */
            user?: string | null;
        };
        /** @description The result of a program. */
        Executed: {
            /**
             * Format: int32
             * @description 128 plus the signal number if a signal ended it.
             */
            exit_code: number;
            stderr: string;
            /** @description Invalid UTF-8 is replaced; the stream has the exact bytes. */
            stdout: string;
            /** @description Whether it was killed because it timed out. */
            timed_out: boolean;
            /** @description Whether output was cut because it did not fit into the response. */
            truncated: boolean;
        };
        /** @description Metadata of a file. Symbolic links are followed. */
        FileInfo: {
            group: string;
            kind: components["schemas"]["FileKind"];
            /**
             * Format: int32
             * @description The permission bits as a number: `0o644` is 420.
             */
            mode: number;
            /** Format: int64 */
            modified_unix: number;
            name: string;
            owner: string;
            path: string;
            /** Format: int64 */
            size: number;
            /** @description The target of a symbolic link. */
            symlink_target?: string | null;
        };
        /** @enum {string} */
        FileKind: "file" | "directory" | "symlink" | "other";
        /** @description The entries of a directory, sorted by name. */
        FileList: {
            files: components["schemas"]["FileInfo"][];
            /** @description If there are more: pass this as `after` to get the next page. */
            next?: string | null;
            /** @description Whether there are more entries. */
            truncated: boolean;
        };
        Health: {
            ok: boolean;
        };
        /**
         * @description What to do about an error.
         * @enum {string}
         */
        HintCode: "list_sandboxes" | "list_snapshots" | "list_sources" | "list_images" | "list_kernels" | "list_branches" | "name_template" | "choose_tag" | "remove_dependents" | "remove_names" | "compact_dependents" | "verify_snapshot" | "move_name" | "confirm_push" | "list_names" | "remove_users" | "remove_branches" | "remove_sandboxes" | "raise_sandboxes" | "raise_project_limits" | "raise_token_limits" | "free_memory" | "free_disk" | "remove_images" | "make_again" | "merge_layers" | "fit_disk" | "network_of_host" | "network_of_snapshot" | "allow_instead" | "cgroup_of_host" | "disk_of_host" | "try_code" | "image_with_language" | "build_on_image" | "pull_first" | "set_up_template" | "try_again" | "try_later" | "try_again_or_remove" | "look_at_end" | "look_at_console" | "resume_first" | "start_listening" | "ask_for_archive" | "daemon_log" | "examine_host" | "on_host" | "needs_root" | "registry_credentials" | "choose_kernel" | "needs_token" | "needs_scope" | "needs_project" | "not_from_web_page" | "send_json" | "read_api" | "use_method" | "use_post" | "new_key";
        /** @description An image with its details. */
        Image: components["schemas"]["ImageSummary"] & {
            config: components["schemas"]["ImageConfig"];
            /** @description Digests of the unpacked layers, the lowest first. */
            layers: string[];
            recipe?: components["schemas"]["ImageRecipe"] | null;
            source: components["schemas"]["ImageSource"];
        };
        /** @description How processes of an image are started. */
        ImageConfig: {
            cmd: string[];
            entrypoint: string[];
            env: {
                [key: string]: string;
            };
            labels: {
                [key: string]: string;
            };
            user?: string | null;
            workdir?: string | null;
        };
        ImageList: {
            images: components["schemas"]["ImageSummary"][];
        };
        /** @description The image's `forkd.toml`. */
        ImageRecipe: {
            /** Format: int64 */
            disk_mib?: number | null;
            /** Format: int64 */
            memory_mib?: number | null;
            ready?: components["schemas"]["ReadyProbe"] | null;
            start?: string[] | null;
            user?: string | null;
            /** Format: int32 */
            vcpus?: number | null;
            warm_up: components["schemas"]["WarmUp"][];
        };
        /** @description Where an image came from. */
        ImageSource: {
            /** @enum {string} */
            kind: "registry";
            /** @description The digest of the manifest. */
            manifest: string;
            reference: string;
        } | {
            file: string;
            /** @enum {string} */
            kind: "archive";
        } | {
            include: string[];
            /** @enum {string} */
            kind: "debian";
            mirror?: string | null;
            suite: string;
        } | {
            /** @enum {string} */
            kind: "build";
        };
        /** @description An image in a list. */
        ImageSummary: {
            /** Format: int64 */
            created_at_unix: number;
            /** @description The default user of its processes. */
            default_user: string;
            /**
             * Format: int64
             * @description Its size on disk.
             */
            disk_bytes: number;
            id: string;
            names: string[];
            /** @description The projects it belongs to that the caller may see. */
            projects?: string[];
            /** @description Whether every project can make snapshots of it. */
            public?: boolean;
            /** @description Whether it is in the shared, read-only library. */
            shared: boolean;
            /**
             * Format: int64
             * @description The size of its file system.
             */
            size_bytes: number;
        };
        /** @description Interrupts the code that runs in a context. */
        Interrupt: {
            /**
             * Format: int64
             * @description Seconds to wait for the code to end. If it is still running then, its interpreter is restarted.
             * @default 5
             */
            grace_secs?: number;
        };
        /** @description The result of an interruption. */
        Interrupted: {
            /** @description Whether the code did not end in time, so that the interpreter was restarted and lost its variables. */
            restarted: boolean;
        };
        /** @description A kernel. */
        Kernel: {
            /** Format: int64 */
            created_at_unix: number;
            /** @description Whether it is the default kernel. */
            default: boolean;
            /** @description Useful modules that it lacks. */
            missing: string[];
            /** @description Its modules, in loading order. */
            modules: string[];
            name: string;
            /** @description Whether it is in the shared, read-only library. */
            shared: boolean;
            version: string;
        };
        KernelList: {
            kernels: components["schemas"]["Kernel"][];
        };
        /** @enum {string} */
        KernelSource: "package" | "host";
        /** @description Counters of KVM. */
        KvmStats: {
            /**
             * Format: int64
             * @description Exits from the guest to KVM.
             */
            exits: number;
            /**
             * Format: int64
             * @description Page faults on guest memory that was not mapped, or not for writing.
             */
            page_faults: number;
        };
        /**
         * @description A language of a guest's interpreters. The image determines which are available: TypeScript needs Node.js 22.13 or newer, Java a
         *     JDK.
         * @enum {string}
         */
        Language: "python" | "javascript" | "typescript" | "bash" | "r" | "java";
        /** @description A line of the streamed response (`Accept: application/x-ndjson`). */
        LibraryProgress: {
            /** @description The current step. */
            step: string;
        } | {
            /** @description The progress of the step; replaces the previous one. */
            detail: string;
        } | {
            /** @description The progress of a snapshot transfer; replaces the previous one. */
            transfer: components["schemas"]["Transfer"];
        } | {
            /** @description A line of output of a build step. */
            output: string;
        } | {
            /** @description A warning. */
            warning: string;
        } | {
            /** @description The last line: the result. */
            image: components["schemas"]["Image"];
        } | {
            /** @description The last line: the result. */
            kernel: components["schemas"]["Kernel"];
        } | {
            /** @description The last line: the result. */
            snapshot: components["schemas"]["Snapshot"];
        } | {
            /** @description The last line: the result. */
            pushed: components["schemas"]["PushedSnapshot"];
        } | {
            /** @description The last line: the error. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description The limits of a sandbox [default: those of the snapshot]. */
        Limits: {
            /**
             * Format: int64
             * @description Bandwidth in MiB per second, for each direction.
             */
            bandwidth_mib?: number | null;
            /**
             * Format: int64
             * @description CPU time in percent of one CPU [default: all vCPUs of the guest].
             */
            cpu_percent?: number | null;
            /**
             * Format: int32
             * @description CPU weight under contention (1-10000, default 100).
             */
            cpu_weight?: number | null;
            /**
             * Format: int64
             * @description The disk space that it can write, in MiB: at most that of the snapshot.
             */
            disk_mib?: number | null;
            /**
             * Format: int64
             * @description Disk I/O operations per second.
             */
            io_per_sec?: number | null;
            /**
             * Format: int64
             * @description Host memory in MiB for what it does not share with its parent. A sandbox that exceeds it is ended [default: the guest's
             *     memory plus the overhead of the VM].
             */
            memory_mib?: number | null;
            /**
             * Format: int64
             * @description Disk read bandwidth in bytes per second.
             */
            read_bytes_per_sec?: number | null;
            /**
             * Format: int64
             * @description Disk write bandwidth in bytes per second.
             */
            write_bytes_per_sec?: number | null;
        };
        /** @description The repository whose tags to list. */
        ListRepository: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description `registry.example/team/app`. */
            repository: string;
        };
        /** @description What a name refers to. A snapshot's tag takes precedence over a sandbox's id. */
        Named: {
            snapshot: components["schemas"]["Snapshot"];
        } | {
            sandbox: components["schemas"]["Sandbox"];
        };
        /** @description The network traffic of a sandbox, and what was dropped. */
        NetworkStats: {
            /**
             * Format: int64
             * @description Over the bandwidth or the limit of connections.
             */
            over_limit_packets: number;
            /** Format: int64 */
            received_bytes: number;
            /** Format: int64 */
            received_packets: number;
            /**
             * Format: int64
             * @description Dropped: not allowed by its egress rules.
             */
            refused_packets: number;
            /** Format: int64 */
            sent_bytes: number;
            /** Format: int64 */
            sent_packets: number;
            /**
             * Format: int64
             * @description Dropped: sent with an address that is not its own.
             */
            spoofed_packets: number;
        };
        /**
         * @description What to do when a sandbox expires.
         * @enum {string}
         */
        OnExpiry: "end" | "pause";
        /**
         * @description A record, manifest or directory that the daemon cannot read. The daemon keeps it, with every process and file that may belong to
         *     it, and retries every minute.
         */
        Problem: {
            path: string;
            /** @description Why it cannot be read. */
            reason: string;
        };
        ProblemList: {
            problems: components["schemas"]["Problem"][];
        };
        /** @description A running program that a client has started; its child processes are not listed. */
        Process: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            /** Format: int32 */
            pid: number;
            /** @description A tag set by an E2B client. */
            tag?: string | null;
            /** @description Whether it has a terminal. */
            tty: boolean;
        };
        /** @description A line of the streamed response (`Accept: application/x-ndjson`). */
        Progress: {
            /** @description The current step. */
            step: string;
        } | {
            /** @description A line of output of a step. */
            output: string;
        } | {
            /** @description The last line: the result. */
            snapshot: components["schemas"]["Snapshot"];
        } | {
            /** @description The last line of a build: the result. */
            built: components["schemas"]["BuiltSnapshot"];
        } | {
            /** @description The last line: the error. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description Which unused objects to remove: cached build steps, and images without a name. */
        PruneImages: {
            /** @description Whether to also remove images without a name, unless snapshots or sandboxes need them. */
            images?: boolean;
            /**
             * Format: int64
             * @description How much of the most recently used build steps to keep, in MiB.
             */
            keep_mib?: number;
        };
        /**
         * @description Which unused snapshots to remove. Never removed: snapshots that have sandboxes or that sandboxes can be rolled back to, public
         *     ones, and those that a remaining snapshot is based on.
         */
        PruneSnapshots: {
            /** @description Only report what would be removed. */
            dry_run?: boolean;
            /**
             * Format: int64
             * @description Stop when the remaining snapshots take at most this much disk space, in MiB. The least recently used are removed first.
             */
            keep_mib?: number;
            /**
             * @description Whether to also remove snapshots with a chosen name, not only those with a generated one. Needs `unused_seconds` or
             *     `keep_mib`.
             */
            named?: boolean;
            /** @description Only those of this project [default: all that the caller may remove]. */
            project?: string | null;
            /**
             * Format: int64
             * @description Only those that were not forked for this many seconds.
             */
            unused_seconds?: number;
        };
        PrunedImages: {
            /** Format: int64 */
            freed_bytes: number;
            /** Format: int64 */
            images: number;
            /** Format: int64 */
            steps: number;
        };
        PrunedSnapshot: {
            /** Format: int64 */
            freed_bytes: number;
            tag: string;
            /**
             * Format: int64
             * @description When it was last forked, or made.
             */
            used_at_unix: number;
        };
        /** @description The snapshots that were or would be removed, in this order. */
        PrunedSnapshots: {
            /**
             * Format: int64
             * @description Freed bytes on disk.
             */
            freed_bytes: number;
            snapshots: components["schemas"]["PrunedSnapshot"][];
        };
        /** @description Makes something usable by every project, or only its own. */
        Publish: {
            public: boolean;
        };
        /** @description Pulls an image from a registry. */
        PullImage: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description The name of the image [default: the reference]. */
            name?: string | null;
            /** @description A Docker reference: `python:3.12`, `registry.example/team/app@sha256:…`. Plain HTTP is used only with the daemon's own host. */
            reference: string;
            /**
             * Format: int64
             * @description The minimum size of the file system.
             */
            size_mib?: number | null;
        };
        /** @description Pulls a snapshot from a registry. */
        PullSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description A public key in PEM (ECDSA P-256) that must have signed it, in addition to the daemon's policy. */
            key?: string | null;
            /** @description The source: `registry.example/team/app:tag`, or with `@sha256:…`. */
            reference: string;
            /**
             * @description If this daemon has the same snapshot under any tag, return it and fetch nothing. Otherwise, without a tag, name it after the
             *     reference and its digest: `app-tag-0123456789ab`.
             */
            reuse?: boolean;
            /** @description The tag on this daemon [default: the tag of the sender]. */
            tag?: string | null;
        };
        /** @description Pushes a snapshot to a registry, with all snapshots that it is based on. */
        PushSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /**
             * @description Repositories of the same registry, without the registry's name, that may already have some of the blobs. The daemon adds
             *     those that the snapshot, or one it is based on, was pushed to or pulled from.
             */
            mount_from?: string[];
            /** @description The destination: `registry.example/team/app:tag`. */
            reference: string;
            /**
             * @description Adds the snapshot to the tag as the variant with this name (1-63 of a-z, 0-9 and `._-`), replacing an earlier one with that
             *     name. A pull of the tag gets the first variant that fits the host. Without it, the tag then names this snapshot alone.
             */
            variant?: string | null;
            /**
             * @description With `variant`: a public key in PEM (ECDSA P-256). If what the reference names already is not signed with it, nothing is pushed.
             *     For those who will sign the reference with this key, and with it the variants of others.
             */
            variants_key?: string | null;
            /** @description Confirms the push of a snapshot that contains the memory of a sandbox's users: a snapshot of a sandbox, or one based on it. */
            yes?: boolean;
        };
        /** @description The result of a push. */
        PushedSnapshot: {
            /**
             * Format: int64
             * @description Bytes that the registry already had, or mounted from another repository.
             */
            present_bytes: number;
            /** @description Its reference with the digest. */
            reference: string;
            /**
             * Format: int64
             * @description Bytes sent.
             */
            sent_bytes: number;
        };
        /** @description How to detect that the guest is ready. Needs exactly one of `port` and `command`. */
        ReadyProbe: {
            /** @description Ready when this command exits with 0. */
            command?: string[] | null;
            /**
             * Format: int32
             * @description Ready when a process listens on this port.
             */
            port?: number | null;
            /** Format: int64 */
            timeout_secs?: number | null;
        };
        /** @description What was removed. */
        RemovedImage: {
            /**
             * Format: int64
             * @description Freed bytes on disk.
             */
            freed_bytes: number;
            id: string;
            /** @description The removed names. */
            names: string[];
            /** @description Whether the image itself was removed: by its id or with its last name. */
            removed: boolean;
        };
        /** @description The removed snapshots, in this order. */
        RemovedSnapshots: {
            /** @description The removed name, if the request named not the tag of a snapshot but one of its other names. */
            names?: string[];
            removed: string[];
        };
        /** @description A tag of a repository, and what it names. */
        RepositoryTag: {
            /**
             * Format: int64
             * @description When the snapshot was made, if its manifest has the time.
             */
            created_at_unix?: number | null;
            /** @description The digest of the manifest: `sha256:…`. */
            digest: string;
            /** @description The media type of the object. */
            kind?: string | null;
            /**
             * Format: int64
             * @description Its compressed size, if the registry reports it.
             */
            size_bytes?: number | null;
            /** @description Whether it is a snapshot that can be pulled. */
            snapshot: boolean;
            tag: string;
        };
        /** @description The tags of a repository. */
        RepositoryTags: {
            repository: string;
            /** @description In the registry's order, at most 1000. */
            tags: components["schemas"]["RepositoryTag"][];
            /** @description Whether there are more entries. */
            truncated: boolean;
        };
        /** @description Resolves a reference to a registry. */
        ResolveSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description `registry.example/team/app:tag`, or with `@sha256:…`. */
            reference: string;
        };
        /** @description A snapshot in a registry. */
        ResolvedSnapshot: {
            /** @description The digest to sign and to verify: `sha256:…`. */
            digest: string;
            /** @description Registry and repository, in the form that signatures and policies use. */
            repository: string;
        };
        /** @description Rolls a sandbox back to one of its own branches. */
        Rollback: {
            tag: string;
        };
        /** @description A sandbox. */
        Sandbox: {
            /** @description Its own branches, oldest first. */
            branches: string[];
            /** Format: int64 */
            created_at_unix: number;
            /**
             * Format: int64
             * @description The disk space that it can write, in MiB.
             */
            disk_mib: number;
            egress?: components["schemas"]["Egress"] | null;
            ended?: components["schemas"]["Ended"] | null;
            /**
             * Format: int64
             * @description When it expires.
             */
            expires_at_unix?: number | null;
            id: string;
            /** @description Its enforced limits. */
            limits?: components["schemas"]["Limits"];
            /** Format: int64 */
            memory_mib: number;
            metadata: {
                [key: string]: string;
            };
            on_expiry?: components["schemas"]["OnExpiry"];
            /** @description Who created it: `token:NAME`, `unix:UID`, or `local`. */
            owner?: string | null;
            /**
             * Format: int32
             * @description The process id of its VM on the host.
             */
            pid?: number | null;
            /** @description The project it belongs to. */
            project?: string;
            /** @description The snapshot it was forked from. */
            snapshot_tag: string;
            state: components["schemas"]["SandboxState"];
            /** Format: int32 */
            vcpus: number;
            /** @description Whether a request to it resumes it when it is paused. */
            wake_on_traffic?: boolean;
        };
        /** @description Sandboxes, oldest first. */
        SandboxList: {
            /** @description If there are more: pass this as `after` to get the next page. */
            next?: string | null;
            sandboxes: components["schemas"]["Sandbox"][];
        };
        /** @enum {string} */
        SandboxState: "starting" | "running" | "paused" | "ended";
        /** @description Resource usage of a sandbox. */
        SandboxStats: {
            /**
             * Format: int64
             * @description CPU time of the VM process so far.
             */
            cpu_us: number;
            /**
             * Format: int64
             * @description Bytes written to its disk since its last branch.
             */
            disk_bytes: number;
            kvm?: components["schemas"]["KvmStats"] | null;
            /**
             * Format: int64
             * @description Memory that only this sandbox maps.
             */
            memory_private_bytes: number;
            /**
             * Format: int64
             * @description Memory that it shares with a snapshot's process, and through that with other sandboxes.
             */
            memory_shared_bytes: number;
            /**
             * @description The snapshot that it shares this memory with: its latest branch in memory, or the snapshot it was forked from. Missing if
             *     neither is in memory.
             */
            memory_shared_with?: string | null;
            network?: components["schemas"]["NetworkStats"] | null;
            /**
             * Format: int64
             * @description Page faults of the VM process, without those of its guest.
             */
            process_faults?: number;
        };
        /**
         * @description What a token allows. Each scope includes those before it.
         * @enum {string}
         */
        Scope: "read" | "run" | "admin";
        /** @description Sends a signal to a program and its process group. */
        SendSignal: {
            signal: components["schemas"]["Signal"];
        };
        /** @description Changes the bandwidth of a sandbox. */
        SetBandwidth: {
            /**
             * Format: int64
             * @description Bandwidth in MiB per second, for each direction; `null` for the daemon's default.
             */
            bandwidth_mib?: number | null;
        };
        /** @description Changes when a sandbox expires. */
        SetTtl: {
            /**
             * Format: int64
             * @description Seconds from now; `null` for never.
             */
            ttl_secs?: number | null;
        };
        /**
         * @description A signal.
         * @enum {string}
         */
        Signal: "SIGHUP" | "SIGINT" | "SIGQUIT" | "SIGKILL" | "SIGUSR1" | "SIGUSR2" | "SIGTERM" | "SIGCONT" | "SIGSTOP" | "SIGTSTP";
        /** @description A snapshot. */
        Snapshot: {
            /** @description The sandbox that it was branched from. */
            branched_from?: string | null;
            /** @description For a built snapshot: the digest of its inputs. A build with the same key reuses this snapshot. */
            build_key?: string | null;
            /** @description The snapshots that are based on this one. */
            children: string[];
            /** @description The CPU model of its sandboxes. */
            cpu?: components["schemas"]["Cpu"];
            /** Format: int64 */
            created_at_unix: number;
            /** Format: int64 */
            disk_mib: number;
            /** @description The reason, if it failed. */
            error?: string | null;
            /** @description The image that it was booted from. */
            image?: string | null;
            /** @description Whether it is held in memory, ready to fork. */
            loaded: boolean;
            /** Format: int64 */
            memory_mib: number;
            /** @description Its other names. Each can be used instead of the tag. */
            names?: string[];
            /** @description Whether its sandboxes have a network device. */
            network?: boolean;
            /** @description The snapshot that this one is based on. */
            parent?: string | null;
            /**
             * Format: int64
             * @description How long the sandbox was paused for it, in microseconds.
             */
            pause_us?: number | null;
            /** @description The project it belongs to. */
            project?: string;
            /** @description Whether every project can fork it. */
            public?: boolean;
            resident?: components["schemas"]["SnapshotMemory"] | null;
            /** @description Its size on disk so far. */
            size: components["schemas"]["SnapshotSize"];
            status: components["schemas"]["SnapshotStatus"];
            tag: string;
            /** Format: int32 */
            vcpus: number;
        };
        /** @description A damaged file. */
        SnapshotDamage: {
            /** @description The path of the file, relative to the daemon's directory. */
            file?: string | null;
            /** @description What is wrong with it. */
            problem: string;
        };
        /** @description A snapshot, the snapshots it is based on, and those based on it. */
        SnapshotHistory: {
            /**
             * @description Its chain from the base up, the snapshot itself, then its dependents, each directly after its parent or a sibling's
             *     dependents. Snapshots that the caller may not see are omitted.
             */
            snapshots: components["schemas"]["SnapshotHistoryEntry"][];
            /** @description The snapshot that was asked for. */
            tag: string;
        };
        /** @description A snapshot in a history. */
        SnapshotHistoryEntry: {
            /** Format: int64 */
            created_at_unix: number;
            /** @description The snapshots that are directly based on it. */
            dependents: string[];
            /**
             * Format: int32
             * @description The number of snapshots that it is based on, directly or indirectly.
             */
            depth: number;
            kind: components["schemas"]["SnapshotKind"];
            /** @description Its other names. */
            names?: string[];
            /**
             * Format: int64
             * @description Bytes on disk that only it and its dependents use: its memory, its state, and the disk layers that came with it.
             */
            own_bytes: number;
            /** @description The snapshot that it is based on. */
            parent?: string | null;
            /**
             * Format: int64
             * @description Bytes on disk that it shares with others: the memory of the snapshots it is based on, their disk layers, and the image.
             */
            shared_bytes: number;
            status: components["schemas"]["SnapshotStatus"];
            tag: string;
        };
        /**
         * @description Whether a snapshot stores all of its memory.
         * @enum {string}
         */
        SnapshotKind: "full" | "diff";
        SnapshotList: {
            snapshots: components["schemas"]["Snapshot"][];
        };
        /** @description The memory of a snapshot's process. For a branch, this is the memory of the sandbox at that time. */
        SnapshotMemory: {
            /**
             * Format: int64
             * @description Memory that only this process maps. It is freed when the snapshot is removed.
             */
            private_bytes: number;
            /**
             * Format: int64
             * @description Memory that it shares with sandboxes and other snapshots.
             */
            shared_bytes: number;
        };
        /** @description A signature in a registry. */
        SnapshotSignature: {
            /** @description False if this key had already signed it: the existing signature is kept. */
            added: boolean;
            /** @description The first 16 digits of the SHA-256 of the public key's DER form. */
            key: string;
            /** @description The signed snapshot, by digest. */
            reference: string;
        };
        SnapshotSize: {
            /** Format: int64 */
            disk_bytes: number;
            /** Format: int64 */
            memory_bytes: number;
        };
        /** @enum {string} */
        SnapshotStatus: "live" | "persisting" | "ready" | "failed";
        /** @description The result of reading every file of a snapshot and of the snapshots it is based on. */
        SnapshotVerification: {
            /**
             * Format: int64
             * @description The number of bytes read, including holes of disk layers.
             */
            bytes: number;
            damage?: components["schemas"]["SnapshotDamage"] | null;
            /**
             * Format: int32
             * @description The number of disk layers read, including the image.
             */
            disk_layers: number;
            /** @description Whether all files are intact. */
            intact: boolean;
            /**
             * Format: int32
             * @description The number of snapshots read: itself and those it is based on.
             */
            snapshots: number;
            tag: string;
        };
        /** @description Starts a program in the background. */
        StartProcess: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description Whether its stdin is open for writing. Otherwise it is at its end from the start. */
            stdin?: boolean;
            /**
             * Format: int64
             * @description Seconds until it is killed [default: unlimited].
             */
            timeout_secs?: number | null;
            /** @description The user that runs it [default: the image's]. */
            user?: string | null;
        };
        /** @description A program that was started. */
        StartedProcess: {
            /** Format: int32 */
            pid: number;
        };
        /** @description The time that sandboxes took for one step. */
        StepTiming: {
            /**
             * Format: int32
             * @description The number of sandboxes that took it.
             */
            count: number;
            /** Format: int64 */
            max_us: number;
            /** Format: int64 */
            p50_us: number;
            /** Format: int64 */
            p99_us: number;
            step: string;
        };
        /** @description The TCP port that the daemon listens on. */
        TcpPort: {
            /** @description Whether requests to this port need a token. */
            needs_token: boolean;
            /** @description The URL of the port on the daemon's host, such as `http://127.0.0.1:8889`. */
            url: string;
        };
        TerminalSize: {
            /** Format: int32 */
            cols: number;
            /** Format: int32 */
            rows: number;
        };
        /** @description Limits on what a token or a project uses in total [default: unlimited]. */
        TokenLimits: {
            /**
             * Format: int64
             * @description Memory of their guests and of their branches, in MiB.
             */
            memory_mib?: number | null;
            /**
             * Format: int64
             * @description The number of sandboxes, including guests that make snapshots and images.
             */
            sandboxes?: number | null;
            /**
             * Format: int64
             * @description Disk space of their snapshots in MiB, without what they share with those they are based on. A snapshot that is being made
             *     may exceed it; the next one is refused.
             */
            snapshot_mib?: number | null;
            /**
             * Format: int64
             * @description The number of snapshots, including branches.
             */
            snapshots?: number | null;
            /** Format: int64 */
            vcpus?: number | null;
        };
        /** @description The progress of a transfer. */
        Transfer: {
            /**
             * Format: int64
             * @description Bytes transferred so far, uncompressed.
             */
            done_bytes: number;
            /**
             * Format: int64
             * @description Bytes to transfer in total, uncompressed. A pull excludes what the daemon already has; a push counts what the registry
             *     already has as done.
             */
            total_bytes: number;
        };
        Version: {
            /** @description The version of the API. */
            api: string;
            /** @description Whether the host's CPU is emulated: everything works, but many times slower. */
            emulated?: boolean;
            tcp?: components["schemas"]["TcpPort"] | null;
            /** @description The version of the daemon. */
            version: string;
        };
        /** @description Code for one of the guest's interpreters. */
        WarmUp: {
            code: string;
            language: components["schemas"]["Language"];
        };
        What: {
            ended?: components["schemas"]["Ended"] | null;
            /** @enum {string} */
            event: "sandbox";
            id: string;
            state: components["schemas"]["SandboxState"];
        } | {
            /** @enum {string} */
            event: "sandbox_removed";
            id: string;
        } | {
            /** @enum {string} */
            event: "panicked";
            id: string;
        } | {
            /** @enum {string} */
            event: "out_of_disk";
            id: string;
            /** Format: int64 */
            limit_bytes: number;
        } | {
            contexts: string[];
            /** @enum {string} */
            event: "busy";
            id: string;
        } | {
            /** @enum {string} */
            event: "rolled_back";
            id: string;
            tag: string;
        } | {
            destination?: string | null;
            /** @enum {string} */
            event: "dropped";
            id: string;
            /** @description The queried name. */
            name?: string | null;
            /** Format: int32 */
            port?: number | null;
            /** @description `tcp`, `udp`, `icmp`, `icmpv6`, or an IP protocol number. */
            protocol?: string | null;
            reason: components["schemas"]["DropReason"];
        } | {
            /** @enum {string} */
            event: "snapshot";
            status: components["schemas"]["SnapshotStatus"];
            tag: string;
        } | {
            /** @enum {string} */
            event: "snapshot_removed";
            tag: string;
        } | {
            /**
             * Format: int64
             * @description The number of missed events, unless the daemon has been restarted.
             */
            count?: number | null;
            /** @enum {string} */
            event: "missed";
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
