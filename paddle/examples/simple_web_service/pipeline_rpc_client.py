import sys

from paddle_serving_server.pipeline import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9998"])
house = "0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, 0.6283, 0.4919, 0.1856, 0.0795, -0.0332"
ret = client.predict(feed_dict={"x": house}, fetch=["price"])
print(ret)
