'use strict';
// The pipeline's own method by grpc-js, with messages made from the .proto by proto-loader.

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const {assert, check, runAll, site} = require('./checks');

const pipeline = grpc.loadPackageDefinition(loader.loadSync(site.proto, {keepCase: true}))
  .baidu.paddle_serving.pipeline_serving;
const client = new pipeline.PipelineService(
  `127.0.0.1:${site.rpc}`, grpc.credentials.createInsecure(),
);
const ask = (request, options = {}) => new Promise((resolve, reject) => {
  client.inference(request, options, (error, reply) => (error ? reject(error) : resolve(reply)));
});

check('a text is echoed', async () => {
  const reply = await ask({name: 'echo', method: 'prediction', key: ['x'], value: ['hello']});
  assert.equal(reply.err_no || 0, 0);
  assert.deepEqual(reply.key, ['x']);
  assert.deepEqual(reply.value, ['hello']);
});

check('a tensor is echoed', async () => {
  const tensor = {name: 'x', elem_type: 1, shape: [2, 2], float_data: [1, 2.5, -3, 4]};
  const reply = await ask({name: 'echo', method: 'prediction', tensors: [tensor]});
  assert.equal(reply.err_no || 0, 0);
  assert.deepEqual(reply.tensors[0].float_data, [1, 2.5, -3, 4]);
});

check('two hundred calls at once are not mixed up', async () => {
  const found = await Promise.all(Array.from({length: 200}, (_, i) => ask(
    {name: 'echo', method: 'prediction', key: ['x'], value: [`nonce ${i}`]},
  )));
  found.forEach((reply, i) => assert.deepEqual(reply.value, [`nonce ${i}`]));
});

check('a wrong name is an answer with its number', async () => {
  const reply = await ask({name: 'other', method: 'prediction', key: ['x'], value: ['1']});
  assert.notEqual(reply.err_no, 0);
});

runAll().then(() => client.close());
