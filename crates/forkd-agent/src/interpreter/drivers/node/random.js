// Random numbers that differ between forks, also in code that never returns to the event loop.
//
// V8's generator and OpenSSL's are in the memory of this process, so every fork has the same ones, and neither can be reseeded
// from here. A signal handler in JavaScript does not run while code runs. So from the start:
// - crypto's functions take their bytes from the kernel, whose generator is reseeded by the fork itself;
// - Math.random is a generator of this file's. When the clock's millisecond has changed it looks at the epoch, a number in a
//   file which the agent changes after a fork, and reseeds itself when that is another one. That takes 60 ns a number (V8's
//   12, reading from the kernel 1000). A worker thread that waits for the agent would save the look at the clock, for 12 MiB
//   and twice the time to start.
// OpenSSL's own draws (keys of TLS, generateKeyPair) are out of reach, as are worker threads and contexts of node:vm.
(function install(require, epochPath) {
  'use strict';
  const fs = require('fs');
  const crypto = require('crypto');
  const { openSync, readSync } = fs;
  const { now } = Date;

  let kernel = openSync('/dev/urandom', 'r');
  function fill(view) {
    let done = 0;
    while (done < view.length) {
      try {
        done += readSync(kernel, view, done, view.length - done, null);
      } catch {
        // Code may close descriptors that are not its own.
        kernel = openSync('/dev/urandom', 'r');
      }
    }
    return view;
  }

  const epoch = openSync(epochPath, 'r');
  const current = new Uint8Array(8);
  const seen = new Uint8Array(8);
  let looked = NaN;
  let lost = false;

  // The generator sfc32 ("small fast chaotic"): 128 bits of state, of which a counter is 32.
  const state = new Uint32Array(4);
  let [a, b, c, counter] = [0, 0, 0, 0];
  function reseed() {
    fill(new Uint8Array(state.buffer));
    [a, b, c, counter] = [state[0] | 0, state[1] | 0, state[2] | 0, state[3] | 0];
  }

  function look(time) {
    looked = time;
    try {
      readSync(epoch, current, 0, 8, 0);
    } catch {
      lost = true;
    }
    for (let index = 0; index < 8; index += 1) {
      if (current[index] === seen[index]) continue;
      seen.set(current);
      reseed();
      return;
    }
    // Without the file there is no other way to know.
    if (lost) reseed();
  }

  function next() {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return sum >>> 0;
  }

  // The high 27 and 26 bits of two numbers: all that a double between 0 and 1 can hold.
  const random53 = (high, low) => ((high >>> 5) * 0x4000000 + (low >>> 6)) / 0x20000000000000;

  function random() {
    const time = now();
    if (time !== looked) look(time);
    return random53(next(), next());
  }

  function replace(target, name, value) {
    const { enumerable = true } = Object.getOwnPropertyDescriptor(target, name) ?? {};
    Object.defineProperty(value, 'name', { value: name, configurable: true });
    Object.defineProperty(target, name, { value, configurable: true, enumerable, writable: true });
  }

  // The original is called first: it checks the arguments. What it has drawn is not used.
  function over(target, name, instead) {
    const original = target?.[name];
    if (typeof original !== 'function') return;
    replace(target, name, function (...given) {
      const callback = given.at(-1);
      if (typeof callback !== 'function') return instead(original.apply(this, given), given);
      given[given.length - 1] = (error, value) => (error ? callback(error) : callback(null, instead(value, given)));
      return original.apply(this, given);
    });
  }

  const bytesOf = (buffer) => (ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength) : new Uint8Array(buffer));
  const filled = (buffer) => { fill(bytesOf(buffer)); return buffer; };
  // Of the part that was asked for: offset and size count the array's elements.
  const partFilled = (buffer, [, offset, size]) => {
    const unit = buffer.BYTES_PER_ELEMENT ?? 1;
    const from = typeof offset === 'number' ? offset * unit : 0;
    const to = typeof size === 'number' ? from + size * unit : undefined;
    fill(bytesOf(buffer).subarray(from, to));
    return buffer;
  };
  const uuid = () => {
    const bytes = fill(Buffer.allocUnsafe(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
  };
  const integer = (_drawn, [low, high]) => {
    const [from, to] = typeof high === 'number' ? [low, high] : [0, low];
    const words = new Uint32Array(2);
    fill(new Uint8Array(words.buffer));
    return from + Math.floor(random53(words[0], words[1]) * (to - from));
  };

  readSync(epoch, seen, 0, 8, 0);
  reseed();
  replace(Math, 'random', random);
  over(crypto, 'randomBytes', filled);
  over(crypto, 'pseudoRandomBytes', filled);
  over(crypto, 'prng', filled);
  over(crypto, 'rng', filled);
  over(crypto, 'randomFillSync', partFilled);
  over(crypto, 'randomFill', partFilled);
  over(crypto, 'randomUUID', uuid);
  over(crypto, 'randomInt', integer);
  const web = crypto.webcrypto && Object.getPrototypeOf(crypto.webcrypto);
  // crypto.getRandomValues calls this one.
  over(web, 'getRandomValues', filled);
  over(web, 'randomUUID', uuid);
  require('module').syncBuiltinESMExports();

  return { reseed };
})
