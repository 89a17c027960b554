'use strict';
// Node's own HTTP/2 client, in clear and over TLS.

const fs = require('node:fs');
const http2 = require('node:http2');
const {assert, check, runAll, site} = require('./checks');

const clear = http2.connect(`http://127.0.0.1:${site.h2c}`);
const sealed = http2.connect(`https://localhost:${site.tls}`, {
  ca: fs.readFileSync(site.certificate),
});

const question = (text) => JSON.stringify({key: ['x'], value: [text]});

// {status, body} of one request.
function ask(session, headers, body) {
  return new Promise((resolve, reject) => {
    const stream = session.request(headers);
    const pieces = [];
    let status;
    stream.on('response', (found) => { status = found[':status']; });
    stream.on('data', (piece) => pieces.push(piece));
    stream.on('end', () => resolve({status, body: Buffer.concat(pieces).toString()}));
    stream.on('error', reject);
    stream.end(body);
  });
}

async function echo(session, text) {
  const {status, body} = await ask(
    session,
    {':method': 'POST', ':path': '/echo/prediction', 'content-type': 'application/json'},
    question(text),
  );
  assert.equal(status, 200);
  const reply = JSON.parse(body);
  assert.equal(reply.err_no, 0);
  assert.equal(reply.value[0], text);
}

check('a probe in clear', async () => {
  const {status} = await ask(clear, {':path': '/livez'});
  assert.equal(status, 200);
});

check('a probe over TLS, by ALPN', async () => {
  const {status} = await ask(sealed, {':path': '/livez'});
  assert.equal(status, 200);
  assert.equal(sealed.alpnProtocol, 'h2');
});

check('HEAD has no body', async () => {
  const {status, body} = await ask(clear, {':path': '/livez', ':method': 'HEAD'});
  assert.equal(status, 200);
  assert.equal(body, '');
});

check('an unknown path', async () => {
  const {status} = await ask(clear, {':path': '/nothing'});
  assert.equal(status, 404);
});

check('an echo in clear', () => echo(clear, 'hello'));
check('an echo over TLS', () => echo(sealed, 'hello'));

check('two hundred streams at once are not mixed up', async () => {
  await Promise.all(Array.from({length: 200}, (_, i) => echo(clear, `nonce ${i}`)));
  await Promise.all(Array.from({length: 200}, (_, i) => echo(sealed, `nonce ${i}`)));
});

check('a body of 8 MiB goes through flow control both ways', () => echo(clear, 'x'.repeat(8 << 20)));

check('a body in many small pieces', async () => {
  const text = 'piece '.repeat(200);
  const {status, body} = await new Promise((resolve, reject) => {
    const stream = clear.request({':method': 'POST', ':path': '/echo/prediction'});
    let status;
    const pieces = [];
    stream.on('response', (found) => { status = found[':status']; });
    stream.on('data', (piece) => pieces.push(piece));
    stream.on('end', () => resolve({status, body: Buffer.concat(pieces).toString()}));
    stream.on('error', reject);
    const bytes = Buffer.from(question(text));
    for (let i = 0; i < bytes.length; i += 7) stream.write(bytes.subarray(i, i + 7));
    stream.end();
  });
  assert.equal(status, 200);
  assert.equal(JSON.parse(body).value[0], text);
});

check('pings are answered', async () => {
  for (let i = 0; i < 5; i += 1) {
    await new Promise((resolve, reject) => {
      const sent = Buffer.from(`ping ${i}  `).subarray(0, 8);
      clear.ping(sent, (error, _, payload) => {
        if (error) reject(error);
        else if (!sent.equals(payload)) reject(new Error('another payload'));
        else resolve();
      });
    });
  }
});

check('streams that are reset leave the others alone', async () => {
  const staying = Array.from({length: 20}, (_, i) => echo(clear, `stays ${i}`));
  for (let i = 0; i < 20; i += 1) {
    const stream = clear.request({':method': 'POST', ':path': '/echo/prediction'});
    stream.on('error', () => undefined);
    stream.write('{"key"');
    stream.close(http2.constants.NGHTTP2_CANCEL);
  }
  await Promise.all(staying);
  await echo(clear, 'after them');
});

check('changed settings are acknowledged', async () => {
  await new Promise((resolve, reject) => {
    clear.settings({initialWindowSize: 1024, maxFrameSize: 20000}, (error) => {
      if (error) reject(error);
      else resolve();
    });
  });
  await echo(clear, 'y'.repeat(200000));
});

check('headers beyond the limits are answered and the connection lives', async () => {
  const {status} = await ask(clear, {':path': '/livez', 'x-large': 'z'.repeat(12000)});
  assert.equal(status, 431);
  await echo(clear, 'after it');
});

check('a connection that was closed has ended', async () => {
  await new Promise((resolve) => { sealed.close(resolve); });
});

runAll().then(() => clear.destroy());
