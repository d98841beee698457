// The official E2B clients for JavaScript, unmodified, against a daemon: all that they can do with a sandbox.
//
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where it is. The clients are those of the directory that this is run in.
// What a version does not have is skipped, and said so.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import http from 'node:http'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { randomUUID } from 'node:crypto'

const require = createRequire(path.join(process.cwd(), 'package.json'))
const load = (name) => import(pathToFileURL(require.resolve(name)))
const e2b = await load('e2b')
const { Sandbox } = await load('@e2b/code-interpreter')
const { version } = require('e2b/package.json')

const slowness = Number(process.env.FORKD_TEST_SLOWNESS ?? '1')
const run = randomUUID()
const minutes = (n) => n * 60_000

// Older interpreters go to https://49999-<id>.<domain>, wherever E2B_SANDBOX_URL is.
const hasCode = Number(version.split('.')[1]) >= 30

class Skipped extends Error {}

function needsCode() {
  if (!hasCode) throw new Skipped("this client's interpreter does not know E2B_SANDBOX_URL")
}

// In the memory of an interpreter, or in a file.
async function remember(sandbox, name, number) {
  if (hasCode) await sandbox.runCode(`${name} = ${number}`)
  else await sandbox.files.write(`/tmp/${name}`, String(number))
}

async function remembered(sandbox, name) {
  return hasCode ? (await sandbox.runCode(name)).text : sandbox.files.read(`/tmp/${name}`)
}

async function until(condition, seconds = 10) {
  const end = Date.now() + seconds * 1000 * slowness
  while (Date.now() < end) {
    if (await condition()) return true
    await new Promise((done) => setTimeout(done, 100))
  }
  return false
}

// fetch() does not let a caller choose the host.
function fetchFrom(host, target = '/') {
  const base = new URL(process.env.E2B_SANDBOX_URL)
  return new Promise((done, failed) => {
    const request = http.request(
      { host: base.hostname, port: base.port, path: target, headers: { host } },
      (answer) => {
        const pieces = []
        answer.on('data', (piece) => pieces.push(piece))
        answer.on('end', () => done({ status: answer.statusCode, body: Buffer.concat(pieces).toString() }))
      },
    )
    request.on('error', failed)
    request.end()
  })
}

const tests = {
  async info(sandbox) {
    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.equal(info.metadata.text, 'grün & blau')
    assert.equal(info.state, 'running')
    assert.ok(info.endAt > info.startedAt)
    assert.equal(await sandbox.isRunning(), true)
  },

  async timeoutAndConnect(sandbox) {
    await sandbox.setTimeout(minutes(20))
    const before = (await sandbox.getInfo()).endAt
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 30_000 })
    assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
    assert.ok(Math.abs((await again.getInfo()).endAt - before) < 5000, 'connecting takes no time away')
  },

  async list(sandbox) {
    const pages = Sandbox.list({ query: { metadata: { run, text: 'grün & blau' } }, limit: 1 })
    const found = []
    while (pages.hasNext) found.push(...(await pages.nextItems()))
    assert.ok(found.some((one) => one.sandboxId === sandbox.sandboxId))
  },

  async metrics(sandbox) {
    const metrics = await sandbox.getMetrics()
    assert.ok(metrics.length >= 1 && metrics.at(-1).memTotal > 0)
  },

  async unknown() {
    await assert.rejects(Sandbox.connect('i0000000000000000000'), e2b.NotFoundError)
    assert.equal(await Sandbox.kill('i0000000000000000000'), false)
    await assert.rejects(Sandbox.create('there-is-no-such-template'))
  },

  async pauseAndConnect() {
    const one = await Sandbox.create({ timeoutMs: minutes(10), metadata: { run } })
    await remember(one, 'kept_number', 42)
    const pause = () => (one.pause ? one.pause() : one.betaPause())
    await pause()
    assert.equal(await one.isRunning(), false)
    assert.ok([false, undefined].includes(await pause()))
    const paused = await Sandbox.list({ query: { metadata: { run }, state: ['paused'] } }).nextItems()
    assert.deepEqual(paused.map((entry) => entry.sandboxId), [one.sandboxId])
    const again = await Sandbox.connect(one.sandboxId, { timeoutMs: minutes(5) })
    assert.equal(await remembered(again, 'kept_number'), '42')
    // Old clients say nothing.
    assert.ok([true, undefined].includes(await again.kill()))
    assert.ok([false, undefined].includes(await again.kill()))
  },

  async fork(sandbox) {
    if (!sandbox.fork) throw new Skipped('this client has no fork')
    await sandbox.runCode("branch = ['common']")
    const forks = await sandbox.fork({ count: 3, timeoutMs: minutes(10) })
    const children = forks.map((fork) => fork.sandbox ?? fork)
    assert.equal(new Set(children.map((child) => child.sandboxId)).size, 3)
    for (const [number, child] of children.entries()) await child.runCode(`branch.append('child ${number}')`)
    for (const [number, child] of children.entries()) {
      assert.equal((await child.runCode('branch')).text, `['common', 'child ${number}']`)
      await child.kill()
    }
    assert.equal((await sandbox.runCode('branch')).text, "['common']")
  },

  async snapshots(sandbox) {
    if (!sandbox.createSnapshot) throw new Skipped('this client has no snapshots')
    await remember(sandbox, 'frozen', 7)
    const snapshot = await sandbox.createSnapshot()
    await remember(sandbox, 'frozen', 8)
    const listed = await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems()
    assert.ok(listed.some((one) => one.snapshotId === snapshot.snapshotId))
    const one = await Sandbox.create(snapshot.snapshotId, { timeoutMs: minutes(5) })
    assert.equal(await remembered(one, 'frozen'), '7')
    await one.kill()
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  },

  async network() {
    const one = await Sandbox.create({ timeoutMs: minutes(5), allowInternetAccess: false })
    assert.equal((await one.commands.run('echo isolated')).stdout, 'isolated\n')
    if (one.updateNetwork) {
      await one.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['192.0.2.1'] })
      await one.updateNetwork({ denyOut: ['8.8.8.0/24', '1.1.1.1'] })
      await assert.rejects(one.updateNetwork({ denyOut: ['example.com'] }), /denyOut: 'example\.com' is not an address/)
    }
    await one.kill()
  },

  async commands(sandbox) {
    const result = await sandbox.commands.run('echo out; echo err >&2; echo $FROM_CREATE $COLOUR', { envs: { COLOUR: 'blue' } })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\nset blue\n', 'err\n', 0])
    await assert.rejects(sandbox.commands.run('exit 7'), (error) => error.exitCode === 7)
    const text = 'größe – 日本語 🦊\n'
    let seen = ''
    await sandbox.commands.run(`for i in 1 2 3; do printf '${text}'; sleep 0.1; done`, { onStdout: (data) => { seen += data } })
    assert.equal(seen, text.repeat(3))
    await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), e2b.TimeoutError)
  },

  // Whatever names nobody is done by `user`, in its home, who may become root.
  async user(sandbox) {
    const run = async (command, options) => (await sandbox.commands.run(command, options)).stdout
    assert.equal(await run('id -un; id -u; pwd; echo $HOME $USER'), 'user\n1000\n/home/user\n/home/user user\n')
    assert.equal(await run('id -un; pwd', { user: 'user', cwd: '/home/user' }), 'user\n/home/user\n')
    assert.equal(await run('id -un; echo $HOME', { user: 'root' }), 'root\n/root\n')
    assert.equal(await run('sudo id -u'), '0\n')
    await sandbox.files.write('mine.txt', 'x')
    await sandbox.files.write('/home/user/a/deep.txt', 'x')
    const owned = await run("stat -c '%U:%G' /home/user /home/user/mine.txt /home/user/a /home/user/a/deep.txt")
    assert.deepEqual(new Set(owned.trim().split('\n')), new Set(['user:user']))
    await sandbox.files.write('/root/theirs.txt', 'x', { user: 'root' })
    assert.equal(await run('stat -c %U:%G /root/theirs.txt', { user: 'root' }), 'root:root\n')
    if (hasCode) {
      const code = await sandbox.runCode('import os; (os.getuid(), os.getcwd())')
      assert.equal(code.text, "(1000, '/home/user')")
    }
  },

  async background(sandbox) {
    const handle = await sandbox.commands.run('cat; echo done', { background: true, stdin: true })
    assert.ok((await sandbox.commands.list()).some((process) => process.pid === handle.pid))
    await sandbox.commands.sendStdin(handle.pid, 'hello\n')
    if (sandbox.commands.closeStdin) {
      await sandbox.commands.closeStdin(handle.pid)
      assert.equal((await handle.wait()).stdout, 'hello\ndone\n')
    } else {
      assert.equal(await sandbox.commands.kill(handle.pid), true)
    }
    const other = await sandbox.commands.run('sleep 300', { background: true })
    const connected = await sandbox.commands.connect(other.pid)
    await connected.disconnect()
    assert.equal(await sandbox.commands.kill(other.pid), true)
  },

  async files(sandbox) {
    const home = `/tmp/files-${run}`
    assert.equal(await sandbox.files.makeDir(home), true)
    assert.equal(await sandbox.files.makeDir(home), false)
    await sandbox.files.write(`${home}/a ü.txt`, 'größe')
    assert.equal(await sandbox.files.read(`${home}/a ü.txt`), 'größe')
    await sandbox.files.write(`${home}/bytes`, new Uint8Array([0, 255, 10]).buffer)
    assert.deepEqual([...(await sandbox.files.read(`${home}/bytes`, { format: 'bytes' }))], [0, 255, 10])
    await sandbox.files.write(`${home}/empty`, '')
    assert.equal(await sandbox.files.read(`${home}/empty`), '')
    await sandbox.files.write([{ path: `${home}/many/1`, data: '1' }, { path: `${home}/many/2`, data: '2' }])
    const names = (await sandbox.files.list(home)).map((entry) => entry.name).sort()
    assert.deepEqual(names, ['a ü.txt', 'bytes', 'empty', 'many'])
    assert.equal(await sandbox.files.exists(`${home}/nothing`), false)
    assert.equal((await sandbox.files.getInfo(`${home}/bytes`)).size, 3)
    await sandbox.files.rename(`${home}/bytes`, `${home}/renamed`)
    await sandbox.files.remove(`${home}/renamed`)
    await assert.rejects(sandbox.files.read(`${home}/renamed`), e2b.NotFoundError)
  },

  async watch(sandbox) {
    const home = `/tmp/watch-${run}`
    await sandbox.files.makeDir(home)
    const seen = []
    const watcher = await sandbox.files.watchDir(home, (event) => seen.push(event.name))
    await sandbox.files.write(`${home}/new`, 'x')
    assert.ok(await until(() => seen.includes('new')))
    await watcher.stop()
  },

  async signedLinks(sandbox) {
    const path = `/tmp/signed-${run}`
    const form = new FormData()
    form.append('file', new Blob(['signed']), 'x')
    const uploaded = await fetch(await sandbox.uploadUrl(path), { method: 'POST', body: form })
    assert.equal(uploaded.status, 200)
    const url = await sandbox.downloadUrl(path)
    assert.equal(await (await fetch(url)).text(), 'signed')
    assert.ok([400, 401].includes((await fetch(url.replace('v1_', 'v1_x'))).status))
  },

  async terminal(sandbox) {
    let seen = ''
    const decoder = new TextDecoder()
    const pty = await sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: (data) => { seen += decoder.decode(data) } })
    await sandbox.pty.resize(pty.pid, { cols: 100, rows: 30 })
    await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
    await pty.wait().catch(() => {})
    assert.match(seen, /30 100/)
    const other = await sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
    assert.equal(await sandbox.pty.kill(other.pid), true)
  },

  async previews(sandbox) {
    const server = await sandbox.commands.run('cd /tmp && exec python3 -u -m http.server 8123', { background: true })
    const host = sandbox.getHost(8123)
    assert.ok(await until(async () => (await fetchFrom(host)).status === 200, 30))
    const closed = await fetchFrom(sandbox.getHost(8124))
    assert.equal(closed.status, 502)
    assert.match(closed.body, /port is not open/)
    await sandbox.commands.kill(server.pid)
  },

  async webSockets(sandbox) {
    const script = `
const http = require('http'), crypto = require('crypto')
http.createServer().on('upgrade', (request, socket) => {
  const key = crypto.createHash('sha1').update(request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64')
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + key + '\\r\\n\\r\\n')
  socket.write(Buffer.from([0x81, 5, ...Buffer.from('hello')]))
}).listen(8125)`
    await sandbox.files.write('/tmp/socket.js', script)
    const server = await sandbox.commands.run('exec node /tmp/socket.js', { background: true })
    const base = new URL(process.env.E2B_SANDBOX_URL)
    const ask = () => new Promise((done) => {
      const request = http.request({
        host: base.hostname, port: base.port,
        headers: { host: sandbox.getHost(8125), connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': 'AAAAAAAAAAAAAAAAAAAAAA==' },
      })
      request.on('upgrade', (_, socket, head) => {
        const end = (data) => { socket.destroy(); done(data.subarray(2).toString()) }
        head.length ? end(head) : socket.once('data', end)
      })
      request.on('response', (answer) => { answer.resume(); done(answer.statusCode) })
      request.on('error', () => done('error'))
      request.end()
    })
    assert.ok(await until(async () => (await ask()) === 'hello', 60))
    await sandbox.commands.kill(server.pid)
  },

  async code(sandbox) {
    needsCode()
    const execution = await sandbox.runCode("print('größe – 日本語')\nx = 20\nx + 1")
    assert.equal(execution.text, '21')
    assert.deepEqual(execution.logs.stdout, ['größe – 日本語\n'])
    assert.equal((await sandbox.runCode('x * 2')).text, '40')
    assert.equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
    assert.deepEqual((await sandbox.runCode('console.log(6 * 7)', { language: 'javascript' })).logs.stdout, ['42\n'])
  },

  async plots(sandbox) {
    needsCode()
    const plot = await sandbox.runCode('import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()', { timeoutMs: minutes(5) })
    assert.ok(plot.results[0].png)
  },

  async contexts(sandbox) {
    needsCode()
    const context = await sandbox.createCodeContext({ cwd: '/tmp' })
    assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
    if (sandbox.listCodeContexts) {
      assert.ok((await sandbox.listCodeContexts()).some((one) => one.id === context.id))
      await sandbox.restartCodeContext(context)
      await sandbox.removeCodeContext(context)
    }
  },
}

console.log(`e2b ${version}`)
const options = { timeoutMs: minutes(30), metadata: { run, text: 'grün & blau' }, envs: { FROM_CREATE: 'set' } }
const sandbox = await Sandbox.create(options)
const wanted = process.argv.slice(2)
const failed = []
for (const [name, test] of Object.entries(tests)) {
  if (wanted.length && !wanted.includes(name)) continue
  const begun = Date.now()
  let outcome = 'ok'
  try {
    await test(sandbox)
  } catch (error) {
    outcome = error instanceof Skipped ? `skipped: ${error.message}` : 'FAILED'
    if (outcome === 'FAILED') {
      console.error(error)
      failed.push(name)
    }
  }
  console.log(`${name} ${outcome} (${(Date.now() - begun) / 1000} s)`)
}
await sandbox.kill()
if (failed.length) {
  console.error(`${failed.length} failed: ${failed.join(', ')}`)
  process.exit(1)
}
process.exit(0)
