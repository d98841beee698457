// Given to `node -e`. The argument is the path of the agent's socket: the first line from there is the driver's source.
const socket = require('net').connect(process.argv[1]);
process.argv.splice(1);
let received = [];
socket.on('data', function collect(chunk) {
  const end = chunk.indexOf(10);
  received.push(end < 0 ? chunk : chunk.subarray(0, end));
  if (end < 0) return;
  socket.removeListener('data', collect);
  const { source, options } = JSON.parse(Buffer.concat(received).toString());
  received = null;
  const run = require('vm').runInThisContext(source, { filename: 'forkd_guest_driver' });
  run(require, socket, options, chunk.subarray(end + 1));
});
