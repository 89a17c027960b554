import base64
import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18082"
keys, values = [], []
for name in ("one", "two"):
    with open(f"{name}.png", "rb") as file:
        keys.append(name)
        values.append(base64.b64encode(file.read()).decode("utf8"))
data = json.dumps({"key": keys, "value": values}).encode()
request = urllib.request.Request(f"{server}/finder/prediction", data)
print(json.load(urllib.request.urlopen(request)))
