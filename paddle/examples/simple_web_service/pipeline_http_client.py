import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18082"
house = "0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, 0.6283, 0.4919, 0.1856, 0.0795, -0.0332"
data = {"key": ["x"], "value": [f"{house};{house}"]}
request = urllib.request.Request(f"{server}/uci/prediction", json.dumps(data).encode())
print(json.load(urllib.request.urlopen(request)))
