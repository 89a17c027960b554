'use strict';
// Traffic of every kind that Node.js speaks, until the time is over. Prints how much was answered;
// an answer to another's question ends it with an error.

const fs = require('node:fs');
const http2 = require('node:http2');
const grpc = require('@grpc/grpc-js');

const site = JSON.parse(process.argv[2]);
const end = Date.now() + Number(site.seconds) * 1000;
let answered = 0;
let number = 0;

// A text of up to 100 KB that no other question has.
function nonce(kind) {
  number += 1;
  const size = number % 50 === 0 ? 100000 : number % 7 * 100;
  return `${site.stamp} ${kind} ${number} ${'.'.repeat(size)}`;
}

function ask(session, text) {
  return new Promise((resolve, reject) => {
    const stream = session.request({':method': 'POST', ':path': '/echo/prediction'});
    const pieces = [];
    stream.on('data', (piece) => pieces.push(piece));
    stream.on('end', () => resolve(JSON.parse(Buffer.concat(pieces).toString()).value[0]));
    stream.on('error', reject);
    stream.end(JSON.stringify({key: ['x'], value: [text]}));
  });
}

const asIs = (bytes) => bytes;
const calls = new grpc.Client(`127.0.0.1:${site.kinds}`, grpc.credentials.createInsecure());

function unary(text) {
  return new Promise((resolve, reject) => {
    calls.makeUnaryRequest(
      '/peers.Kinds/Unary', asIs, asIs, Buffer.from(text),
      (error, reply) => (error ? reject(error) : resolve(reply.toString())),
    );
  });
}

function bidi(text) {
  return new Promise((resolve, reject) => {
    const found = [];
    const call = calls.makeBidiStreamRequest('/peers.Kinds/Bidi', asIs, asIs);
    call.on('data', (message) => found.push(message.toString()));
    call.on('end', () => resolve(found.join('')));
    call.on('error', reject);
    for (let i = 0; i < text.length; i += 20000) call.write(Buffer.from(text.slice(i, i + 20000)));
    call.end();
  });
}

async function asking(kind, by) {
  while (Date.now() < end) {
    const text = nonce(kind);
    const got = await by(text);
    if (got !== text) throw new Error(`asked ${text.slice(0, 60)}, got ${String(got).slice(0, 60)}`);
    answered += 1;
  }
}

async function main() {
  const clear = http2.connect(`http://127.0.0.1:${site.h2c}`);
  const sealed = http2.connect(`https://localhost:${site.tls}`, {
    ca: fs.readFileSync(site.certificate),
  });
  await Promise.all([
    ...[0, 1, 2].map(() => asking('clear', (text) => ask(clear, text))),
    ...[0, 1, 2].map(() => asking('sealed', (text) => ask(sealed, text))),
    ...[0, 1, 2].map(() => asking('unary', unary)),
    ...[0, 1].map(() => asking('bidi', bidi)),
  ]);
  clear.close();
  sealed.close();
  calls.close();
  process.stdout.write(String(answered));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
