import json
import sys
import urllib.request

server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18071"
data = json.dumps({"key": ["words"], "value": ["this movie is great"]}).encode()
request = urllib.request.Request(f"{server}/prediction/prediction", data)
print(json.load(urllib.request.urlopen(request)))
