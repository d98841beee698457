// Runs cells for the agent, one at a time, in the global scope.
//
// Requests are lines of JSON: {"op": "run", "id", "code", "env"} and {"op": "fork", "id", "env", "identity"}. Every request is
// answered by any number of events and then by {"event": "done", "id", "rests"}. Output goes to descriptors 1 and 2, which are pipes to
// the agent.
(function start(require, socket, options, begun) {
  'use strict';
  const { Duplex } = require('stream');
  const { inspect } = require('util');
  const repl = require('repl');

  // Bytes as they are sent. A result crosses as one message, and the daemon takes lines of 16 MiB.
  const MAX_MESSAGE = 12 << 20;
  const MAX_TEXT = 8 << 20;
  const MAX_ERROR = 1 << 20;
  const DISPLAY = Symbol.for('Jupyter.display');
  const FIELDS = {
    'text/plain': 'text', 'text/html': 'html', 'text/markdown': 'markdown', 'image/svg+xml': 'svg', 'image/png': 'png',
    'image/jpeg': 'jpeg', 'application/pdf': 'pdf', 'text/latex': 'latex', 'application/json': 'json',
    'application/javascript': 'javascript',
  };

  const random = require('vm').runInThisContext(options.random, { filename: 'forkd_guest_random' })(require, options.epoch);

  let running = false;
  let cells = 0;

  const send = (message) => socket.write(JSON.stringify(message) + '\n');

  // The REPL's evaluation knows top-level await and finds the value of the last expression; its input and output are not used.
  const nowhere = new Duplex({ read() {}, write(_chunk, _encoding, done) { done(); } });
  // In a domain of its own it would keep errors to itself, so it gets one that does nothing.
  const domain = { on() {}, emit() {}, exit() {}, bind: (work) => work };
  const server = repl.start({
    prompt: '', input: nowhere, output: nowhere, terminal: false, useGlobal: true, breakEvalOnSigint: true, domain,
  });
  const late = (error) => process.stderr.write(describe(error).traceback + '\n');
  process.removeAllListeners('SIGINT');
  // While code waits for a promise. Code that runs is interrupted by the REPL itself.
  const interrupt = () => { if (running) server.emit('SIGINT'); };
  process.on('SIGINT', interrupt);
  process.on('uncaughtException', late);
  process.on('unhandledRejection', late);
  process.exit = (code) => {
    const error = new Error(String(code ?? process.exitCode ?? 0));
    error.name = 'SystemExit';
    throw error;
  };
  Object.defineProperty(process, 'stdin', { value: emptyInput(), configurable: true });
  globalThis.display = (value) => send({ event: 'result', main: false, fields: fields(value) });

  function emptyInput() {
    const input = new (require('stream').Readable)({ read() { this.push(null); } });
    input.fd = 0;
    return input;
  }

  function fields(value) {
    const found = {};
    const shown = typeof value?.[DISPLAY] === 'function' ? value[DISPLAY]() : null;
    if (shown && typeof shown === 'object') {
      for (const [kind, part] of Object.entries(shown)) {
        if (FIELDS[kind]) found[FIELDS[kind]] = part;
      }
    }
    found.text ??= inspect(value);
    found.text = cut(String(found.text), MAX_TEXT);
    // What is too much beside the text is left out, the largest first.
    const others = Object.keys(found).filter((key) => key !== 'text');
    const sizes = new Map(others.map((key) => [key, size(found[key])]));
    others.sort((one, other) => sizes.get(other) - sizes.get(one));
    let total = size(found.text) + [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
    for (const key of others) {
      if (total <= MAX_MESSAGE && sizes.get(key) <= MAX_TEXT) break;
      total -= sizes.get(key);
      delete found[key];
    }
    return found;
  }

  // Of what is no JSON, more than fits.
  function size(part) {
    try {
      return Buffer.byteLength(JSON.stringify(part) ?? '');
    } catch {
      return 1 << 30;
    }
  }

  // As much of the text as fits into `most` bytes of JSON, where a character can be up to six.
  function cut(text, most) {
    if (text.length <= most / 6 || size(text) <= most) return text;
    let [fits, tooMuch] = [0, Math.min(text.length, most)];
    while (tooMuch - fits > most >> 8) {
      const middle = (fits + tooMuch) >> 1;
      if (size(text.slice(0, middle)) <= most) fits = middle;
      else tooMuch = middle;
    }
    return text.slice(0, fits) + `\n[cut: ${text.length} characters in all]`;
  }

  function describe(error) {
    const { name, value, traceback } = words(error);
    return { name: cut(name, MAX_ERROR), value: cut(value, MAX_ERROR), traceback: cut(traceback, MAX_ERROR) };
  }

  function words(error) {
    if (!(error instanceof Error) && typeof error?.stack !== 'string') {
      return { name: 'Error', value: inspect(error), traceback: 'Thrown: ' + inspect(error) };
    }
    if (error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
      return { name: 'Interrupted', value: 'execution was interrupted', traceback: 'Interrupted: execution was interrupted' };
    }
    // The frames below the cell's are the REPL's and this driver's.
    const lines = String(error.stack).split('\n').filter((line) => !line.includes('forkd_guest_random:'));
    const own = lines.findIndex((line) => /\((?:node:vm|node:repl|node:domain|node:internal\/vm|node:internal\/modules\/typescript|forkd_guest_driver)[:)]|at (?:node:vm|node:repl|forkd_guest_driver):/.test(line));
    const kept = own < 0 ? lines : lines.slice(0, own);
    return { name: String(error.name), value: String(error.message), traceback: kept.join('\n') };
  }

  // `import` in a script is an error, but it is what people write. Each form becomes an awaited import().
  function withoutImports(code) {
    return code.replace(/(^|;)([ \t]*)import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|\{([^}]*)\}\s*)?(?:from\s*)?(['"][^'"\n]+['"])/gm,
      (_all, before, blank, whole, everything, named, from) => {
        const space = before + blank;
        const parts = [];
        if (whole) parts.push(`default: ${whole}`);
        if (named) parts.push(named.replace(/\s+as\s+/g, ': '));
        if (everything) return `${space}const ${everything} = await import(${from});`;
        return parts.length ? `${space}const { ${parts.join(', ')} } = await import(${from});` : `${space}await import(${from});`;
      });
  }

  // The types go, and everything else stays where it was. What needs more than that (enums, namespaces) is translated, which moves lines.
  function javascript(code) {
    if (!options.typescript) return code;
    const { stripTypeScriptTypes } = require('module');
    if (typeof stripTypeScriptTypes !== 'function') {
      throw new Error(`TypeScript needs Node.js 22.13 or newer; this is ${process.version}`);
    }
    // It says in every process that it is experimental.
    const { emitWarning } = process;
    process.emitWarning = () => {};
    try {
      return stripTypeScriptTypes(code);
    } catch (error) {
      if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
      try {
        return stripTypeScriptTypes(code, { mode: 'transform' });
      } catch (other) {
        // A version that only strips.
        throw other.code === 'ERR_INVALID_ARG_VALUE' ? error : other;
      }
    } finally {
      process.emitWarning = emitWarning;
    }
  }

  function evaluate(code) {
    return new Promise((resolve, reject) => {
      // Removing a listener resets the signal to its default, which would undo what the REPL sets up. So it goes before.
      process.removeListener('SIGINT', interrupt);
      server.eval(code + '\n', globalThis, `<cell ${cells}>`, (error, value) => {
        if (error instanceof repl.Recoverable) reject(error.err);
        else if (error) reject(error);
        else resolve({ value });
      });
      process.on('SIGINT', interrupt);
    });
  }

  async function run(request) {
    cells += 1;
    const before = new Map();
    for (const [name, value] of Object.entries(request.env ?? {})) {
      before.set(name, process.env[name]);
      process.env[name] = value;
    }
    running = true;
    try {
      const code = javascript(request.code);
      const outcome = await evaluate(code).catch((error) => {
        const rewritten = withoutImports(code);
        const isImport = error instanceof SyntaxError && /import statement/.test(error.message);
        if (!isImport || rewritten === code) throw error;
        return evaluate(rewritten);
      });
      running = false;
      if (outcome.value !== undefined) send({ event: 'result', main: true, fields: fields(outcome.value) });
    } catch (error) {
      send({ event: 'error', ...describe(error) });
    } finally {
      running = false;
      for (const [name, value] of before) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
    }
  }

  function afterFork(request) {
    Object.assign(process.env, request.env ?? {});
    globalThis.forkd_identity = request.identity ?? {};
    random.reseed();
  }

  // Whether nothing of this process runs before the next request, so that a fork can be told with that: there is no more than when
  // the first one came. Versions before 17.3 do not say. A timer that keeps nobody alive is not seen; its random numbers are the
  // fork's own all the same.
  const active = () => process.getActiveResourcesInfo?.().length;
  let own;
  const rests = () => own !== undefined && active() <= own;

  const requests = [];
  let busy = false;

  async function work() {
    if (busy) return;
    busy = true;
    own ??= active();
    while (requests.length) {
      const request = requests.shift();
      if (request.op === 'run') await run(request);
      if (request.op === 'fork') {
        try {
          afterFork(request);
        } catch (error) {
          send({ event: 'problem', message: describe(error).value });
        }
      }
      send({ event: 'done', id: request.id, rests: rests() });
    }
    busy = false;
  }

  let pieces = [];
  function receive(chunk) {
    for (;;) {
      const end = chunk.indexOf(10);
      if (end < 0) break;
      pieces.push(chunk.subarray(0, end));
      requests.push(JSON.parse(Buffer.concat(pieces).toString()));
      pieces = [];
      chunk = chunk.subarray(end + 1);
    }
    if (chunk.length) pieces.push(chunk);
    work();
  }

  socket.on('data', receive);
  // Without the agent, nobody will ever ask again.
  socket.on('close', () => process.reallyExit(0));
  socket.on('error', () => process.reallyExit(0));
  send({ event: 'ready' });
  receive(begun);
})
