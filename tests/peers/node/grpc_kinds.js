'use strict';
// Every kind of call by grpc-js, on raw bytes.

const grpc = require('@grpc/grpc-js');
const {assert, check, runAll, site} = require('./checks');

const asIs = (bytes) => bytes;
const method = (name, requestStream, responseStream) => ({
  path: `/peers.Kinds/${name}`,
  requestStream,
  responseStream,
  requestSerialize: asIs,
  requestDeserialize: asIs,
  responseSerialize: asIs,
  responseDeserialize: asIs,
});
const Kinds = grpc.makeGenericClientConstructor({
  Unary: method('Unary', false, false),
  ClientStream: method('ClientStream', true, false),
  ServerStream: method('ServerStream', false, true),
  Bidi: method('Bidi', true, true),
});
const connect = (options = {}) => new Kinds(
  `127.0.0.1:${site.kinds}`,
  grpc.credentials.createInsecure(),
  {'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1, ...options},
);
const client = connect();

function metadata(fields) {
  const found = new grpc.Metadata();
  for (const [name, value] of Object.entries(fields)) found.set(name, value);
  return found;
}

// {error, reply, lead, trail} of a unary call.
function unary(message, fields = {}, options = {}, by = client) {
  return new Promise((resolve) => {
    const found = {};
    const call = by.Unary(message, metadata(fields), options, (error, reply) => {
      Object.assign(found, {error, reply});
    });
    call.on('metadata', (lead) => { found.lead = lead; });
    call.on('status', (status) => {
      found.trail = status.metadata;
      setImmediate(() => resolve(found));
    });
    found.call = call;
  });
}

// The messages of a call's answer; rejects when it fails.
function messages(call) {
  return new Promise((resolve, reject) => {
    const found = [];
    call.on('data', (message) => found.push(message));
    call.on('end', () => resolve(found));
    call.on('error', reject);
  });
}

check('a unary call', async () => {
  const {error, reply} = await unary(Buffer.from('hello'));
  assert.equal(error, null);
  assert.equal(reply.toString(), 'hello');
});

check('an empty message', async () => {
  const {error, reply} = await unary(Buffer.alloc(0));
  assert.equal(error, null);
  assert.equal(reply.length, 0);
});

check('a stream of requests', async () => {
  const reply = await new Promise((resolve, reject) => {
    const call = client.ClientStream(
      (error, value) => (error ? reject(error) : resolve(value)),
    );
    for (let i = 0; i < 500; i += 1) call.write(Buffer.from(`${i},`));
    call.end();
  });
  assert.equal(reply.toString(), Array.from({length: 500}, (_, i) => `${i},`).join(''));
});

check('a stream of answers', async () => {
  const found = await messages(client.ServerStream(Buffer.from('300 1000')));
  assert.equal(found.length, 300);
  found.forEach((message, i) => {
    assert.equal(message.length, 1000);
    assert.equal(parseInt(message.toString(), 10), i);
  });
});

check('both streams in turn', async () => {
  const call = client.Bidi();
  const found = [];
  await new Promise((resolve, reject) => {
    call.on('data', (message) => {
      found.push(message.toString());
      if (found.length === 100) call.end();
      else call.write(Buffer.from(String(found.length)));
    });
    call.on('end', resolve);
    call.on('error', reject);
    call.write(Buffer.from('0'));
  });
  assert.deepEqual(found, Array.from({length: 100}, (_, i) => String(i)));
});

check('metadata, text and binary, both ways', async () => {
  const bytes = Buffer.from([0, 255, 1, 254, 44, 61]);
  const {error, lead, trail} = await unary(Buffer.from('x'), {
    'lead-text': 'first', 'lead-bytes-bin': bytes, 'trail-text': 'a, b', 'trail-bytes-bin': bytes,
  });
  assert.equal(error, null);
  assert.deepEqual(lead.get('lead-text'), ['first']);
  assert.ok(bytes.equals(lead.get('lead-bytes-bin')[0]));
  assert.deepEqual(trail.get('trail-text'), ['a, b']);
  assert.ok(bytes.equals(trail.get('trail-bytes-bin')[0]));
});

check('a failure with its text', async () => {
  const text = 'nothing hére: 100 % \u{1f4a7}\n';
  const {error} = await unary(Buffer.from('x'), {
    fail: '5', 'fail-text-bin': Buffer.from(text), 'trail-why': 'gone',
  });
  assert.equal(error.code, grpc.status.NOT_FOUND);
  assert.equal(error.details, text);
  assert.deepEqual(error.metadata.get('trail-why'), ['gone']);
});

check('an unknown method', async () => {
  const error = await new Promise((resolve) => {
    client.makeUnaryRequest('/peers.Kinds/Nothing', asIs, asIs, Buffer.from('x'), resolve);
  });
  assert.equal(error.code, grpc.status.UNIMPLEMENTED);
});

check('a deadline', async () => {
  const before = Date.now();
  const {error} = await unary(
    Buffer.from('x'), {'hold-ms': '20000'}, {deadline: Date.now() + 300},
  );
  assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED);
  assert.ok(Date.now() - before < 5000);
});

check('a call that is cancelled', async () => {
  const call = client.ServerStream(Buffer.from('5 10'), metadata({'hold-ms': '20000'}));
  const code = await new Promise((resolve) => {
    let count = 0;
    call.on('data', () => {
      count += 1;
      if (count === 5) call.cancel();
    });
    call.on('error', (error) => resolve(error.code));
  });
  assert.equal(code, grpc.status.CANCELLED);
});

check('messages compressed by gzip', async () => {
  const by = connect({'grpc.default_compression_algorithm': 2});
  const text = Buffer.from('again and '.repeat(20000));
  const {error, reply} = await unary(text, {}, {}, by);
  assert.equal(error, null);
  assert.ok(text.equals(reply));
  by.close();
});

check('a message of 16 MiB', async () => {
  const large = Buffer.alloc(16 << 20, 'penstock');
  const {error, reply} = await unary(large);
  assert.equal(error, null);
  assert.ok(large.equals(reply));
});

check('a thousand calls at once are not mixed up', async () => {
  const found = await Promise.all(
    Array.from({length: 1000}, (_, i) => unary(Buffer.from(`nonce ${i}`))),
  );
  found.forEach(({error, reply}, i) => {
    assert.equal(error, null);
    assert.equal(reply.toString(), `nonce ${i}`);
  });
});

runAll().then(() => client.close());
