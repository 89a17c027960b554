import sys

from numpy import array, float32  # replies are evaluated

from paddle_serving_server.pipeline import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:18070"])
words = ["i am very sad", "this movie is great", "this movie is bad"]
futures = []
for i in range(60):
    feed = {"words": words[i % 3], "logid": 10000 + i}
    futures.append(client.predict(feed_dict=feed, fetch=["prediction"], asyn=True))
for i, f in enumerate(futures):
    res = f.result()
    if res.err_no != 0:
        print(f"predict failed: {res}")
    elif i < 3:
        print(words[i], eval(dict(zip(res.key, res.value))["prediction"]))
print(len(futures))
