import sys

from paddle_serving_server.pipeline import Analyst

analyst = Analyst(sys.argv[1] if len(sys.argv) > 1 else "profile.txt")
analyst.save_trace("./trace")
op_analyst = analyst.get_op_analyst()
print(op_analyst.concurrency_analysis("analyse.yaml"))
