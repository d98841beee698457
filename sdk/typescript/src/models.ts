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
export type TerminalSize = components["schemas"]["TerminalSize"];
export type TokenLimits = components["schemas"]["TokenLimits"];
export type Transfer = components["schemas"]["Transfer"];
export type Version = components["schemas"]["Version"];
export type WarmUp = components["schemas"]["WarmUp"];
export type What = components["schemas"]["What"];

export interface components {
    schemas: {
        /** @description Adds a kernel that the daemon's host can get. */
        AddKernel: {
            /** @description Whether it becomes the default. */
            default?: boolean;
            source?: components["schemas"]["KernelSource"];
            /** @description Of the host's own kernels, this version; without one, the newest. */
            version?: string | null;
        };
        /** @description Stores a signature of a snapshot that is in a registry. It is made where the private key is. */
        AddSnapshotSignature: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description The public key in PEM (ECDSA P-256). The signature is checked with it. */
            key: string;
            /** @description The JSON that was signed, in the form of cosign's simple signing. At most 64 KiB. */
            payload: string;
            /** @description What was signed, by its digest: `registry.example/team/app@sha256:…`. */
            reference: string;
            /** @description ECDSA of the payload's SHA-256, as DER in base64. */
            signature: string;
        };
        /**
         * Format: binary
         * @description An archive that is sent as the body of a request.
         */
        Archive: string;
        /** @description Makes a snapshot of a sandbox, which goes on. */
        BranchSandbox: {
            /** @description The snapshot's name. Without one, it gets one. */
            tag?: string | null;
            /** @description Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from. */
            wait?: boolean;
        };
        /**
         * @description What a build has done, or would do.
         * @enum {string}
         */
        BuildOutcome: "unchanged" | "reused" | "made";
        /** @description Builds a snapshot: makes it, unless there is one of the same contents, and gives it a name. */
        BuildSnapshot: {
            /** @description What it is made of, without a tag: that is the name with digits of the key. */
            contents: components["schemas"]["CreateSnapshot"];
            /** @description Whether nothing is made, and the answer says what would be. */
            dry_run?: boolean;
            /**
             * @description The name that it gets: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was built under
             *     this name before loses it, and stays.
             */
            name: string;
            /** @description Whether it is made anew even if there is one of the same contents. */
            no_cache?: boolean;
        };
        /** @description What came of a build. */
        BuiltSnapshot: {
            /** @description The digest of what it is made of. Missing if the snapshot that it is based on would be made first. */
            key?: string | null;
            name: string;
            outcome: components["schemas"]["BuildOutcome"];
            /** @description The tag of the snapshot that had the name before, if it was another one. */
            replaced?: string | null;
            snapshot?: components["schemas"]["Snapshot"] | null;
        };
        /** @description Who a request is from. */
        Caller: {
            /** @description The most that there may be at once of what it makes. */
            limits?: components["schemas"]["TokenLimits"];
            /** @description `token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token. */
            name: string;
            /** @description The project of what it makes. */
            project: string;
            scope: components["schemas"]["Scope"];
        };
        /** @description Chooses the default. */
        ChooseKernel: {
            /** @description A name, or its beginning: a version. */
            kernel: string;
        };
        /** @description An interpreter with its state: what code has defined in it, other code in it finds. */
        CodeContext: {
            /** @description Whether code runs in it. */
            busy: boolean;
            cwd: string;
            id: string;
            /** @description The language's name, as in Eval; a guest with another agent may have others. */
            language: string;
        };
        /** @description What a sandbox used at two moments of its creation. */
        Counted: {
            /** @description When its guest had its identity and was ready. */
            ready: components["schemas"]["SandboxStats"];
            /** @description When its VM ran. */
            running: components["schemas"]["SandboxStats"];
        };
        /**
         * @description What a guest is shown of the host's CPU.
         * @enum {string}
         */
        Cpu: "host" | "x86-64-v2" | "x86-64-v3";
        /** @description Makes a context, and starts its interpreter. */
        CreateCodeContext: {
            /** @description Where its code begins. Without it, the user's directory. */
            cwd?: string | null;
            language?: components["schemas"]["Language"];
        };
        /** @description Asks for sandboxes, as one operation. */
        CreateSandboxes: {
            /** @description Whether to look on the way at what each of them uses: for measurements, since it takes time. */
            counted?: boolean;
            egress?: components["schemas"]["Egress"] | null;
            /** @description Added to the environment of everything that is started in them. */
            env?: {
                [key: string]: string;
            };
            /** @description A sandbox to copy: it is branched, goes on, and the branch is removed when the copies are there. */
            from_sandbox?: string | null;
            limits?: components["schemas"]["Limits"];
            /** @description The caller's own words, which lists can be filtered by. */
            metadata?: {
                [key: string]: string;
            };
            /**
             * Format: int32
             * @description How many.
             * @default 1
             */
            n?: number;
            /** @description What happens to them when they expire. */
            on_expiry?: components["schemas"]["OnExpiry"];
            /** @description Whether those that came up are kept when others did not. */
            partial?: boolean;
            /** @description The snapshot to fork from. */
            snapshot_tag?: string | null;
            /** @description What to fork: a snapshot of this name, or else a sandbox with this id. Either this, `snapshot_tag` or `from_sandbox`. */
            source?: string | null;
            /**
             * Format: int64
             * @description Seconds until they expire.
             */
            ttl_secs?: number | null;
            /** @description Whether a request to one that is paused wakes it, for another `ttl_secs`: code, commands, files and ports. */
            wake_on_traffic?: boolean;
        };
        /** @description Boots an image, or forks a snapshot, runs commands and code in it, and freezes it. One of `image` and `snapshot`. */
        CreateSnapshot: {
            /** @description What the guest is shown of the host's CPU. A snapshot of a level can be used on every host that has the level. */
            cpu?: components["schemas"]["Cpu"];
            /**
             * Format: int64
             * @description What its sandboxes may write to their disks.
             */
            disk_mib?: number | null;
            /**
             * @description Whether it is for programs that are written for E2B: commands, files and code are those of the user `user` unless a call
             *     names another, in /home/user, with passwordless sudo, whatever the image has.
             */
            e2b?: boolean;
            env?: {
                [key: string]: string;
            };
            /**
             * @description Whether the guest sees the certificates and proxy settings of the daemon's host, for hosts behind an intercepting proxy:
             *     in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one. Needs the scope admin.
             */
            host_certs?: boolean;
            /** @description A name or an id of an image. */
            image?: string | null;
            /** @description A name of a kernel; without one, the default. */
            kernel?: string | null;
            /** Format: int64 */
            memory_mib?: number | null;
            /**
             * @description Whether the guest has a network device. Without one, its sandboxes reach nothing but what the daemon carries to them.
             * @default true
             */
            network?: boolean;
            ready?: components["schemas"]["ReadyProbe"] | null;
            /** @description Commands to run, one after another, as root with `sh -c`, before `warm_up`. One that fails ends it. */
            run?: string[];
            /**
             * @description A snapshot to base the new one on, which has only what differs from it. Needs a tag, and has what the guest is: of the other
             *     fields, only `env`, `run`, `warm_up` and `wait` can be given.
             */
            snapshot?: string | null;
            /** @description A program that runs from the start. */
            start?: string[] | null;
            /**
             * @description Without one, the snapshot is named after what it is made of, and made once: the same request gets the same snapshot, also while
             *     it is being made for somebody else.
             */
            tag?: string | null;
            /** Format: int32 */
            vcpus?: number | null;
            /**
             * @description Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from.
             * @default true
             */
            wait?: boolean;
            /** @description Code to run, one after another, before the guest is frozen. */
            warm_up?: components["schemas"]["WarmUp"][];
        };
        /** @description How long it took, from the moment the request was admitted. */
        CreateTiming: {
            /**
             * Format: int64
             * @description Until every guest had its identity and was ready.
             */
            ready_us: number;
            /**
             * Format: int64
             * @description Until every VM ran.
             */
            restored_us: number;
            /** @description Where the time of each of them went, without a gap. Steps that begin with `identity.` are parts of the step `identity`. */
            steps?: components["schemas"]["StepTiming"][];
        };
        /** @description What became of a request for sandboxes. */
        CreatedSandboxes: {
            /** @description What each of them used on the way, if that was asked for. In no order. */
            counted?: components["schemas"]["Counted"][];
            /** @description Those that did not come up, if the others were to be kept. */
            failures?: components["schemas"]["ErrorBody"][];
            sandboxes: components["schemas"]["Sandbox"][];
            timing: components["schemas"]["CreateTiming"];
        };
        /** @description For a registry. They are neither kept nor logged. */
        Credentials: {
            password: string;
            username: string;
        };
        /** @description Makes a Debian image, without any registry. */
        DebianImage: {
            /** @description Packages beyond the smallest system. */
            include?: string[];
            /** @description Where packages come from, an address that begins with http:// or https://. */
            mirror?: string | null;
            /** @description Without one, it is made of the suite and the packages. */
            name?: string | null;
            /**
             * Format: int64
             * @description The least size of the file system.
             */
            size_mib?: number | null;
            /** @default bookworm */
            suite?: string;
        };
        /** @description A value that was displayed. */
        Displayed: {
            /** @description The same value in each of its MIME types. What is binary is in base64. */
            data: {
                [key: string]: string;
            };
            /** @description Whether it is the value of the last expression. */
            main: boolean;
        };
        /**
         * @description Why something was dropped.
         * @enum {string}
         */
        DropReason: "refused" | "spoofed" | "over_limit";
        /** @description Where the packets of a sandbox may go. The host and other sandboxes are never among it. */
        Egress: {
            /**
             * @description What is reached in the mode `list`, and in the mode `allow` although `deny` has it: networks (`10.1.0.0/16`), addresses, names (`example.com`, `*.example.com`), each
             *     with ports if only those are meant (`example.com:443`, `10.0.0.7:80,8000-8100`, `[2001:db8::/32]:443`).
             */
            allow?: string[];
            /** @description Networks (`8.8.8.0/24`) and addresses that are not reached in the mode `allow`. What `allow` has wins over them. */
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
        /** @description The body of every answer with a status of 400 or more. */
        ErrorBody: {
            /** @description What failed, for programs. */
            code: components["schemas"]["ErrorCode"];
            /** @description What failed, for people. */
            error: string;
            /** @description What to do about it, for people. */
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
            /** @description A context of its own instead of the language's default one. */
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
        /** @description The code has failed. */
        EvalError: {
            name: string;
            traceback: string;
            value: string;
        };
        /** @description A line of the stream that is the answer when `application/x-ndjson` is accepted. */
        EvalEvent: {
            stdout: string;
        } | {
            stderr: string;
        } | {
            result: components["schemas"]["Displayed"];
        } | {
            /** @description The code has failed. `ended` follows. */
            raised: components["schemas"]["EvalError"];
        } | {
            /** @description The last line. */
            ended: {
                /** @description Whether it was interrupted because its time was over. */
                timed_out: boolean;
                /** @description Whether something was too large to be sent. */
                truncated: boolean;
            };
        } | {
            /** @description The last line: it could not be followed to its end. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description What the code has come to. */
        Evaluated: {
            error?: components["schemas"]["EvalError"] | null;
            /** @description The value of the last expression, as text. */
            result?: string | null;
            /** @description Everything that was displayed, by MIME type, the last expression included. */
            results: {
                [key: string]: string;
            }[];
            stderr: string;
            stdout: string;
            /** @description Whether it was interrupted because its time was over. What it printed and displayed until then is here. */
            timed_out?: boolean;
            /** @description Whether there was more output than an answer holds. */
            truncated: boolean;
        };
        /** @description Something has happened. */
        Event: components["schemas"]["What"] & {
            /** Format: int64 */
            at_unix_ms: number;
            /** @description A place in the stream: `after` with it continues behind this event. */
            cursor?: string;
        };
        /** @description Runs a program and waits for its end. */
        Exec: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description What the program reads. */
            stdin?: string | null;
            /**
             * Format: int64
             * @default 30
             */
            timeout_secs?: number;
            /** @description Without one, the image's. */
            user?: string | null;
        };
        /** @description A line of the stream that is the answer when `application/x-ndjson` is accepted. Bytes are in base64. */
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
             * @description The program has taken this much of what came in binary messages, or will never read it. Only over a WebSocket, and only
             *     for a client that asked with `stdin_window`.
             */
            stdin_taken: {
                /** Format: int64 */
                bytes: number;
            };
        } | {
            /** @description The last line: it has ended. */
            exited: {
                /** Format: int32 */
                exit_code: number;
                timed_out: boolean;
            };
        } | {
            /** @description The last line: it could not be followed to its end. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description A text message of a client after the first one. What the program reads comes in binary messages. */
        ExecInput: {
            /** @description The terminal's new size. */
            resize: components["schemas"]["TerminalSize"];
        } | {
            /** @description To the program, and all that are in its process group. */
            signal: components["schemas"]["Signal"];
        } | "close_stdin";
        /** @description Begins an interactive program: the first message of a client, as text. */
        ExecStart: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description What the program reads first, before what comes in binary messages. */
            stdin?: string | null;
            /**
             * @description Whether the client wants `stdin_taken` events. One that sends at most 1 MiB in binary messages more than these report
             *     is listened to while its program reads nothing: signals, sizes and its going away arrive at once. Without them, a client
             *     that has sent more than that is not listened to until the program reads.
             */
            stdin_window?: boolean;
            /**
             * Format: int64
             * @description Without it, 30 seconds; with a terminal, a day.
             */
            timeout_secs?: number | null;
            tty?: components["schemas"]["TerminalSize"] | null;
            /** @description Without one, the image's. */
            user?: string | null;
        };
        /** @description How a program has ended. */
        Executed: {
            /**
             * Format: int32
             * @description 128 and the signal's number if a signal has ended it.
             */
            exit_code: number;
            stderr: string;
            /** @description What is not UTF-8 is replaced; the stream has it exactly. */
            stdout: string;
            /** @description Whether it was ended because its time was over. */
            timed_out: boolean;
            /** @description Whether there was more output than an answer holds. */
            truncated: boolean;
        };
        /** @description What is known of a file. A link is shown as what it leads to. */
        FileInfo: {
            group: string;
            kind: components["schemas"]["FileKind"];
            /**
             * Format: int32
             * @description The permissions: `0o644` is 420.
             */
            mode: number;
            /** Format: int64 */
            modified_unix: number;
            name: string;
            owner: string;
            path: string;
            /** Format: int64 */
            size: number;
            /** @description Where a link leads. */
            symlink_target?: string | null;
        };
        /** @enum {string} */
        FileKind: "file" | "directory" | "symlink" | "other";
        /** @description What is in a directory, in the order of names. */
        FileList: {
            files: components["schemas"]["FileInfo"][];
            /** @description If there are: `after` with it gives the next of them. */
            next?: string | null;
            /** @description Whether there are more. */
            truncated: boolean;
        };
        Health: {
            ok: boolean;
        };
        /**
         * @description What can be done about a failure.
         * @enum {string}
         */
        HintCode: "list_sandboxes" | "list_snapshots" | "list_sources" | "list_images" | "list_kernels" | "list_branches" | "name_template" | "choose_tag" | "remove_dependents" | "remove_names" | "compact_dependents" | "verify_snapshot" | "move_name" | "confirm_push" | "list_names" | "remove_users" | "remove_branches" | "remove_sandboxes" | "raise_sandboxes" | "raise_project_limits" | "raise_token_limits" | "free_memory" | "free_disk" | "remove_images" | "make_again" | "merge_layers" | "fit_disk" | "network_of_host" | "network_of_snapshot" | "allow_instead" | "cgroup_of_host" | "disk_of_host" | "try_code" | "image_with_language" | "build_on_image" | "pull_first" | "set_up_template" | "try_again" | "try_later" | "try_again_or_remove" | "look_at_end" | "look_at_console" | "resume_first" | "start_listening" | "ask_for_archive" | "daemon_log" | "examine_host" | "on_host" | "needs_root" | "registry_credentials" | "choose_kernel" | "needs_token" | "needs_scope" | "needs_project" | "not_from_web_page" | "send_json" | "read_api" | "use_method" | "use_post" | "new_key";
        /** @description An image with all that is known of it. */
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
        /** @description An image, as lists have it. */
        ImageSummary: {
            /** Format: int64 */
            created_at_unix: number;
            /** @description Who processes belong to when nobody says otherwise. */
            default_user: string;
            /**
             * Format: int64
             * @description What it takes on disk.
             */
            disk_bytes: number;
            id: string;
            names: string[];
            /** @description The projects that it belongs to, as far as the caller sees them. */
            projects?: string[];
            /** @description Whether every project may make snapshots of it. */
            public?: boolean;
            /** @description Whether it is in the library that the daemon only reads. */
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
             * @description What the code gets to end in. Code that still runs then is ended with its interpreter, and a new one is started.
             * @default 5
             */
            grace_secs?: number;
        };
        /** @description What became of an interruption. */
        Interrupted: {
            /** @description Whether the code did not end in time. The context has a new interpreter then, without the variables of the old one. */
            restarted: boolean;
        };
        /** @description A kernel. */
        Kernel: {
            /** Format: int64 */
            created_at_unix: number;
            /** @description Whether it is used when none is named. */
            default: boolean;
            /** @description Modules that would be of use and that it does not have. */
            missing: string[];
            /** @description Modules that come with it, in the order in which they are loaded. */
            modules: string[];
            name: string;
            /** @description Whether it is in the library that the daemon only reads. */
            shared: boolean;
            version: string;
        };
        KernelList: {
            kernels: components["schemas"]["Kernel"][];
        };
        /** @enum {string} */
        KernelSource: "package" | "host";
        /** @description What KVM has counted. */
        KvmStats: {
            /**
             * Format: int64
             * @description From the guest to KVM.
             */
            exits: number;
            /**
             * Format: int64
             * @description On guest memory that was not mapped, or not for writing.
             */
            page_faults: number;
        };
        /**
         * @description A language of a guest's interpreters. Which ones there are is up to the image: TypeScript needs Node.js 22.13 or newer, Java a JDK.
         * @enum {string}
         */
        Language: "python" | "javascript" | "typescript" | "bash" | "r" | "java";
        /** @description A line of the stream that is the answer when `application/x-ndjson` is accepted. */
        LibraryProgress: {
            /** @description What is being done now. */
            step: string;
        } | {
            /** @description How far it is. Each replaces the one before. */
            detail: string;
        } | {
            /** @description How far a transfer of a snapshot is. Each replaces the one before. */
            transfer: components["schemas"]["Transfer"];
        } | {
            /** @description A line of what a build step prints. */
            output: string;
        } | {
            /** @description Something to know, whatever becomes of it. */
            warning: string;
        } | {
            /** @description The last line: it is done. */
            image: components["schemas"]["Image"];
        } | {
            /** @description The last line: it is done. */
            kernel: components["schemas"]["Kernel"];
        } | {
            /** @description The last line: it is here. */
            snapshot: components["schemas"]["Snapshot"];
        } | {
            /** @description The last line: it is there. */
            pushed: components["schemas"]["PushedSnapshot"];
        } | {
            /** @description The last line: it failed. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description What a sandbox may use. What is not said is as the snapshot has it. */
        Limits: {
            /**
             * Format: int64
             * @description MiB a second that it may send, and may receive.
             */
            bandwidth_mib?: number | null;
            /**
             * Format: int64
             * @description CPU time, in hundredths of one CPU. Without it, all of its CPUs.
             */
            cpu_percent?: number | null;
            /**
             * Format: int32
             * @description Its share where CPUs are short, against 100 of another.
             */
            cpu_weight?: number | null;
            /**
             * Format: int64
             * @description What it may write to its disk: at most what the snapshot's may.
             */
            disk_mib?: number | null;
            /**
             * Format: int64
             * @description How often it may do either.
             */
            io_per_sec?: number | null;
            /**
             * Format: int64
             * @description Of the host's memory, for what it does not share with its parent. One that needs more is ended. Without it, as much as
             *     its guest has, and what that costs the host.
             */
            memory_mib?: number | null;
            /**
             * Format: int64
             * @description What it may read from the device of its disk, each second.
             */
            read_bytes_per_sec?: number | null;
            /**
             * Format: int64
             * @description What it may write there.
             */
            write_bytes_per_sec?: number | null;
        };
        /** @description Whose tags are listed. */
        ListRepository: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description `registry.example/team/app`. */
            repository: string;
        };
        /** @description What a name means: a snapshot's tag comes before a sandbox's id. */
        Named: {
            snapshot: components["schemas"]["Snapshot"];
        } | {
            sandbox: components["schemas"]["Sandbox"];
        };
        /** @description What a sandbox has sent and received, and what was dropped of it. */
        NetworkStats: {
            /**
             * Format: int64
             * @description Beyond its bandwidth, or with more connections than a sandbox may have.
             */
            over_limit_packets: number;
            /** Format: int64 */
            received_bytes: number;
            /** Format: int64 */
            received_packets: number;
            /**
             * Format: int64
             * @description Not allowed by its egress.
             */
            refused_packets: number;
            /** Format: int64 */
            sent_bytes: number;
            /** Format: int64 */
            sent_packets: number;
            /**
             * Format: int64
             * @description With addresses that are not its own.
             */
            spoofed_packets: number;
        };
        /**
         * @description What happens to a sandbox when its time is over.
         * @enum {string}
         */
        OnExpiry: "end" | "pause";
        /**
         * @description A record, manifest or directory of the daemon's that it cannot read. It leaves that as it is, with every process and file that
         *     may belong to it, and tries again every minute.
         */
        Problem: {
            path: string;
            /** @description Why it cannot be read. */
            reason: string;
        };
        ProblemList: {
            problems: components["schemas"]["Problem"][];
        };
        /** @description A program that runs: one that a client has started, not one of its children. */
        Process: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            /** Format: int32 */
            pid: number;
            /** @description A name that an E2B client has given it. */
            tag?: string | null;
            /** @description Whether it has a terminal. */
            tty: boolean;
        };
        /** @description A line of the stream that is the answer when `application/x-ndjson` is accepted. */
        Progress: {
            /** @description What is being done now. */
            step: string;
        } | {
            /** @description A line of what a step prints. */
            output: string;
        } | {
            /** @description The last line: it is done. */
            snapshot: components["schemas"]["Snapshot"];
        } | {
            /** @description The last line of a build: it is done. */
            built: components["schemas"]["BuiltSnapshot"];
        } | {
            /** @description The last line: it failed. */
            error: components["schemas"]["ErrorBody"];
        };
        /** @description What is removed of what nobody names: steps that builds have kept, and images. */
        PruneImages: {
            /** @description Whether images without a name go too, unless snapshots or sandboxes need them. */
            images?: boolean;
            /**
             * Format: int64
             * @description How much is kept of the steps that were used last.
             */
            keep_mib?: number;
        };
        /**
         * @description Which snapshots are removed that nobody needs. Those that sandboxes were forked from or can be rolled back to, public ones, and those
         *     that others are based on which stay, stay in any case.
         */
        PruneSnapshots: {
            /** @description Only say what would go. */
            dry_run?: boolean;
            /**
             * Format: int64
             * @description Stop as soon as what is left takes no more than this on disk; those that were not used for the longest time go first.
             */
            keep_mib?: number;
            /**
             * @description Whether those that somebody has named go, too, and not only those named after what they are made of. Needs `unused_seconds` or
             *     `keep_mib`.
             */
            named?: boolean;
            /** @description Only those of this project. Without it, all those that the caller may remove. */
            project?: string | null;
            /**
             * Format: int64
             * @description Those that were not forked for so long.
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
             * @description When it was forked last, or made.
             */
            used_at_unix: number;
        };
        /** @description What was removed, or would be, in this order. */
        PrunedSnapshots: {
            /**
             * Format: int64
             * @description What the disk has back.
             */
            freed_bytes: number;
            snapshots: components["schemas"]["PrunedSnapshot"][];
        };
        /** @description Whether every project may use something. */
        Publish: {
            public: boolean;
        };
        /** @description Pulls an image from a registry. */
        PullImage: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description The name that the image gets; without one, the reference. */
            name?: string | null;
            /**
             * @description As Docker has it: `python:3.12`, `registry.example/team/app@sha256:…`. Plain http is spoken with the daemon's own host
             *     only.
             */
            reference: string;
            /**
             * Format: int64
             * @description The least size of the file system.
             */
            size_mib?: number | null;
        };
        /** @description Fetches a snapshot from a registry. */
        PullSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description A public key in PEM (ECDSA P-256) that must have signed it, beside what the daemon's policy demands. */
            key?: string | null;
            /** @description Where from: `registry.example/team/app:tag`, or with `@sha256:…`. */
            reference: string;
            /**
             * @description If this very snapshot is here, under whatever tag, answer with it and fetch nothing. If it is not and no tag is given, it is
             *     called after the reference and its digest: `app-tag-0123456789ab`.
             */
            reuse?: boolean;
            /** @description What it is called here. Without one, what its sender calls it. */
            tag?: string | null;
        };
        /** @description Sends a snapshot to a registry, with all that it stands on. */
        PushSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /**
             * @description Repositories of the same registry that may have some of it already, without the registry's name. Those that the snapshot, or one that
             *     it is based on, was pushed to or pulled from are known.
             */
            mount_from?: string[];
            /** @description Where to: `registry.example/team/app:tag`. */
            reference: string;
            /**
             * @description Adds it to what the tag names, as the variant with this name (1-63 of a-z, 0-9 and `._-`), in the place of an earlier one with that
             *     name. Whoever pulls the tag gets the first variant that fits the host. Without it, the tag then names this snapshot alone.
             */
            variant?: string | null;
            /**
             * @description A snapshot of a sandbox has the memory of whoever used it, and so have those that are based on one. They are pushed only with
             *     this.
             */
            yes?: boolean;
        };
        /** @description What a push has done. */
        PushedSnapshot: {
            /**
             * Format: int64
             * @description Bytes that the registry had already, or took from another repository.
             */
            present_bytes: number;
            /** @description Where it is, by its digest. */
            reference: string;
            /**
             * Format: int64
             * @description Bytes that were sent.
             */
            sent_bytes: number;
        };
        /** @description When the guest is ready. One of `port` and `command`. */
        ReadyProbe: {
            /** @description This command ends with 0. */
            command?: string[] | null;
            /**
             * Format: int32
             * @description Somebody listens on this port.
             */
            port?: number | null;
            /** Format: int64 */
            timeout_secs?: number | null;
        };
        /** @description What was removed. */
        RemovedImage: {
            /**
             * Format: int64
             * @description What the disk has back.
             */
            freed_bytes: number;
            id: string;
            /** @description The names that are gone. */
            names: string[];
            /** @description Whether the image is gone too: it was removed by its id or its last name. */
            removed: boolean;
        };
        /** @description What was removed, in this order. */
        RemovedSnapshots: {
            /** @description The name that was removed, if what was named is not the tag of a snapshot but another of its names. */
            names?: string[];
            removed: string[];
        };
        /** @description A tag of a repository, and what it names. */
        RepositoryTag: {
            /**
             * Format: int64
             * @description When the snapshot was made, if its manifest says it.
             */
            created_at_unix?: number | null;
            /** @description The digest of the manifest: `sha256:…`. */
            digest: string;
            /** @description The type of what it is, as a media type. */
            kind?: string | null;
            /**
             * Format: int64
             * @description Compressed bytes, if the registry says it.
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
            /** @description Whether there are more. */
            truncated: boolean;
        };
        /** @description Asks what a reference to a registry names now. */
        ResolveSnapshot: {
            credentials?: components["schemas"]["Credentials"] | null;
            /** @description `registry.example/team/app:tag`, or with `@sha256:…`. */
            reference: string;
        };
        /** @description A snapshot in a registry. */
        ResolvedSnapshot: {
            /** @description The digest to sign and to verify: `sha256:…`. */
            digest: string;
            /** @description Registry and repository, as signatures and policies name them. */
            repository: string;
        };
        /** @description Takes a sandbox back to one of its own branches. */
        Rollback: {
            tag: string;
        };
        /** @description A sandbox. */
        Sandbox: {
            /** @description Its own branches, the oldest first. */
            branches: string[];
            /** Format: int64 */
            created_at_unix: number;
            /**
             * Format: int64
             * @description What it may write to its disk.
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
            /** @description What it may use of the host, as it is kept. */
            limits?: components["schemas"]["Limits"];
            /** Format: int64 */
            memory_mib: number;
            metadata: {
                [key: string]: string;
            };
            on_expiry?: components["schemas"]["OnExpiry"];
            /** @description Who asked for it: `token:NAME`, `unix:UID`, or `local`. */
            owner?: string | null;
            /**
             * Format: int32
             * @description Its VM process on the host.
             */
            pid?: number | null;
            /** @description The project that it belongs to. */
            project?: string;
            /** @description The snapshot that it was forked from. */
            snapshot_tag: string;
            state: components["schemas"]["SandboxState"];
            /** Format: int32 */
            vcpus: number;
            /** @description Whether a request to it wakes it when it is paused. */
            wake_on_traffic?: boolean;
        };
        /** @description Sandboxes, the oldest first. */
        SandboxList: {
            /** @description There are more: ask again with this as `after`. */
            next?: string | null;
            sandboxes: components["schemas"]["Sandbox"][];
        };
        /** @enum {string} */
        SandboxState: "starting" | "running" | "paused" | "ended";
        /** @description What a sandbox uses. */
        SandboxStats: {
            /**
             * Format: int64
             * @description CPU time of the VM process so far.
             */
            cpu_us: number;
            /**
             * Format: int64
             * @description What it has written to its disk since its last branch.
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
             * @description Memory that it shares with other processes: with a snapshot's, and through that with other sandboxes.
             */
            memory_shared_bytes: number;
            /**
             * @description The snapshot that it shares this memory with: its latest branch in memory, or the snapshot that it was forked from. None
             *     if neither is in memory.
             */
            memory_shared_with?: string | null;
            network?: components["schemas"]["NetworkStats"] | null;
            /**
             * Format: int64
             * @description Page faults of the VM process, its guest's aside.
             */
            process_faults?: number;
        };
        /**
         * @description What a token allows. Each scope has all of those before it.
         * @enum {string}
         */
        Scope: "read" | "run" | "admin";
        /** @description Sends a signal to a program and all that are in its process group. */
        SendSignal: {
            signal: components["schemas"]["Signal"];
        };
        /** @description Changes how much a sandbox may send and receive. */
        SetBandwidth: {
            /**
             * Format: int64
             * @description MiB a second that it may send, and may receive; `null` for what the daemon gives to those who ask for nothing.
             */
            bandwidth_mib?: number | null;
        };
        /** @description Changes when a sandbox is ended by itself. */
        SetTtl: {
            /**
             * Format: int64
             * @description Seconds from now; `null` for never.
             */
            ttl_secs?: number | null;
        };
        /**
         * @description A signal that programs are sent.
         * @enum {string}
         */
        Signal: "SIGHUP" | "SIGINT" | "SIGQUIT" | "SIGKILL" | "SIGUSR1" | "SIGUSR2" | "SIGTERM" | "SIGCONT" | "SIGSTOP" | "SIGTSTP";
        /** @description A snapshot. */
        Snapshot: {
            /** @description The sandbox that it is a branch of. */
            branched_from?: string | null;
            /** @description Of one that was built: the digest of what it was made of. A build with the same key gets this snapshot. */
            build_key?: string | null;
            /** @description The snapshots that are changes of this one. */
            children: string[];
            /** @description What its sandboxes are shown of the host's CPU. */
            cpu?: components["schemas"]["Cpu"];
            /** Format: int64 */
            created_at_unix: number;
            /** Format: int64 */
            disk_mib: number;
            /** @description Why it failed. */
            error?: string | null;
            /** @description The image that it was booted from. */
            image?: string | null;
            /** @description Whether a process is there to fork from at once. */
            loaded: boolean;
            /** Format: int64 */
            memory_mib: number;
            /** @description Its other names. Each can be used in the place of the tag. */
            names?: string[];
            /** @description Whether its sandboxes have a network. */
            network?: boolean;
            /** @description The snapshot that this one is a change of. */
            parent?: string | null;
            /**
             * Format: int64
             * @description How long the sandbox stood still for it.
             */
            pause_us?: number | null;
            /** @description The project that it belongs to. */
            project?: string;
            /** @description Whether every project may fork from it. */
            public?: boolean;
            resident?: components["schemas"]["SnapshotMemory"] | null;
            /** @description What it takes on disk, as far as it is there. */
            size: components["schemas"]["SnapshotSize"];
            status: components["schemas"]["SnapshotStatus"];
            tag: string;
            /** Format: int32 */
            vcpus: number;
        };
        /** @description A file that is not as it was written. */
        SnapshotDamage: {
            /** @description The file, below the daemon's directory. */
            file?: string | null;
            /** @description What is wrong with it. */
            problem: string;
        };
        /** @description A snapshot, those it is based on and those that are based on it. */
        SnapshotHistory: {
            /**
             * @description Its chain from the base up, itself, then its dependents, each directly behind its parent or a sibling's dependents. Snapshots that
             *     the caller may not see are left out.
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
             * @description How many snapshots it is based on, directly or not.
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
             * @description Bytes on disk that it uses of others: the memory of the snapshots it is based on, their disk layers, and the image.
             */
            shared_bytes: number;
            status: components["schemas"]["SnapshotStatus"];
            tag: string;
        };
        /**
         * @description Whether a snapshot has all of its memory.
         * @enum {string}
         */
        SnapshotKind: "full" | "diff";
        SnapshotList: {
            snapshots: components["schemas"]["Snapshot"][];
        };
        /** @description The memory of a snapshot's process. Of a branch, this is the memory of the sandbox at that time. */
        SnapshotMemory: {
            /**
             * Format: int64
             * @description Memory that only this process maps: the host gets it back when the snapshot is removed.
             */
            private_bytes: number;
            /**
             * Format: int64
             * @description Memory that it shares with sandboxes and other snapshots.
             */
            shared_bytes: number;
        };
        /** @description A signature that is in a registry. */
        SnapshotSignature: {
            /** @description False if this key had signed it before: that signature stays. */
            added: boolean;
            /** @description The first 16 digits of the SHA-256 of the public key's DER form. */
            key: string;
            /** @description What it is of, by its digest. */
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
        /** @description Every file of a snapshot, and of what it is based on, was read. */
        SnapshotVerification: {
            /**
             * Format: int64
             * @description How many bytes were read. Of a disk layer, also its holes.
             */
            bytes: number;
            damage?: components["schemas"]["SnapshotDamage"] | null;
            /**
             * Format: int32
             * @description How many disk layers were read, the image included.
             */
            disk_layers: number;
            /** @description Whether all files are as they were written. */
            intact: boolean;
            /**
             * Format: int32
             * @description How many snapshots were read: itself and those it is based on.
             */
            snapshots: number;
            tag: string;
        };
        /** @description Starts a program that nobody waits for. */
        StartProcess: {
            /** @description The program and its arguments. */
            args: string[];
            cwd?: string | null;
            env?: {
                [key: string]: string;
            };
            /** @description Whether it can be written to. Without it, the program reads the end of its input at once. */
            stdin?: boolean;
            /**
             * Format: int64
             * @description It is killed after this time. Without it, it runs as long as it wants.
             */
            timeout_secs?: number | null;
            /** @description Without one, the image's. */
            user?: string | null;
        };
        /** @description A program that was started. */
        StartedProcess: {
            /** Format: int32 */
            pid: number;
        };
        /** @description How long sandboxes took for one step. */
        StepTiming: {
            /**
             * Format: int32
             * @description How many took it.
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
        TerminalSize: {
            /** Format: int32 */
            cols: number;
            /** Format: int32 */
            rows: number;
        };
        /** @description What there may be at once of a token's, or of a project's, together. What is not said is as much as the host gives. */
        TokenLimits: {
            /**
             * Format: int64
             * @description Of their guests, and what their branches keep.
             */
            memory_mib?: number | null;
            /**
             * Format: int64
             * @description Guests that make snapshots and images count as well.
             */
            sandboxes?: number | null;
            /**
             * Format: int64
             * @description What their snapshots take on disk, without what they share with those they are based on. The one that is being made may go beyond
             *     it; the next is refused.
             */
            snapshot_mib?: number | null;
            /**
             * Format: int64
             * @description Branches are snapshots, too.
             */
            snapshots?: number | null;
            /** Format: int64 */
            vcpus?: number | null;
        };
        /** @description How far a transfer is. */
        Transfer: {
            /**
             * Format: int64
             * @description Bytes that have been transferred, before compression.
             */
            done_bytes: number;
            /**
             * Format: int64
             * @description Bytes to transfer in all, before compression. A pull does not count what is here already; a push counts what the registry has as
             *     done.
             */
            total_bytes: number;
        };
        Version: {
            /** @description The API's. */
            api: string;
            /** @description Whether its host's CPU is an emulator: everything works, and every time is many times what it would be. */
            emulated?: boolean;
            /** @description The daemon's. */
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
            /** @description The name that was asked for. */
            name?: string | null;
            /** Format: int32 */
            port?: number | null;
            /** @description `tcp`, `udp`, `icmp`, `icmpv6`, or a number of IP. */
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
             * @description How many. Not known of a daemon that has ended.
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
