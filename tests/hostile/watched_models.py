"""The models of ``models.py`` with the audit hook of ``watched.py``, and one
controlled by its input: 1 starts the record, 2 causes events on purpose.
"""

import os
import subprocess
import sys

from penstock import op, run
from tests.hostile.models import service, services
from tests.hostile.watched import hook


@op()
def watched(feed):
    if feed["x"][0] == 1:
        sys.audit("penstock.tests.watch")
    else:
        eval("1 + 1")
        open(os.devnull, "w").close()
        subprocess.run(["true"], check=True)
    return feed


if __name__ == "__main__":
    sys.addaudithook(hook)
    run(*services(), service("watch", watched, "UINT8", [1]))
