'use strict';
// A pipeline service by grpc-js, for our own client: it echoes, waits or fails as it is told.

const fs = require('node:fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const site = JSON.parse(process.argv[2]);
const pipeline = grpc.loadPackageDefinition(loader.loadSync(site.proto, {keepCase: true}))
  .baidu.paddle_serving.pipeline_serving;

function inference(call, callback) {
  const {key = [], value = [], tensors = []} = call.request;
  const told = Object.fromEntries(key.map((name, i) => [name, value[i]]));
  if (told.fail) callback({code: Number(told.fail), details: 'as you wish: é'});
  else if (!told.hold) callback(null, {err_no: 0, key, value, tensors});
}

const server = new grpc.Server({'grpc.max_receive_message_length': -1});
server.addService(pipeline.PipelineService.service, {inference});
const credentials = site.key
  ? grpc.ServerCredentials.createSsl(null, [{
    private_key: fs.readFileSync(site.key), cert_chain: fs.readFileSync(site.certificate),
  }])
  : grpc.ServerCredentials.createInsecure();
server.bindAsync(`127.0.0.1:${site.port}`, credentials, (error) => {
  if (error) throw error;
});
