import base64
import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18080"
keys, values = [], []
for name in ("sky", "meadow"):
    with open(f"{name}.jpg", "rb") as file:
        keys.append(f"image_{name}")
        values.append(base64.b64encode(file.read()).decode("utf8"))
data = json.dumps({"key": keys, "value": values}).encode()
request = urllib.request.Request(f"{server}/imagenet/prediction", data)
print(json.load(urllib.request.urlopen(request)))
