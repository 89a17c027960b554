import base64
import sys

from paddle_serving_server.pipeline import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9998"])
with open("two.png", "rb") as file:
    image = base64.b64encode(file.read()).decode("utf8")
for i in range(1):
    ret = client.predict(feed_dict={"two": image}, fetch=["two"])
    print(ret)
