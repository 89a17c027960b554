import sys

from paddle_serving_server.pipeline import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9998"])
feed = {"0": "今天天气很好", "1": "hello world"}
ret = client.predict(feed_dict=feed, fetch=["pooled_output"])
print(ret)
