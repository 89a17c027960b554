import base64
import sys

from paddle_serving_server.pipeline import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:18090"])
with open("note.png", "rb") as file:
    image = base64.b64encode(file.read()).decode("utf8")
ret = client.predict(feed_dict={"image": image}, fetch=["res"])
print(ret)
