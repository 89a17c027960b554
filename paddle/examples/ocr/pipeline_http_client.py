import base64
import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9999"
for name in ("note", "empty"):
    with open(f"{name}.png", "rb") as file:
        image = base64.b64encode(file.read()).decode("utf8")
    data = json.dumps({"key": ["image"], "value": [image]}).encode()
    request = urllib.request.Request(f"{server}/ocr/prediction", data)
    print(json.load(urllib.request.urlopen(request)))
