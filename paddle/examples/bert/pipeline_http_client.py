import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18082"
lines = ["今天天气很好", "我们去公园吃饭"]
data = {"key": [str(i) for i in range(len(lines))], "value": lines}
request = urllib.request.Request(f"{server}/bert/prediction", json.dumps(data).encode())
print(json.load(urllib.request.urlopen(request)))
