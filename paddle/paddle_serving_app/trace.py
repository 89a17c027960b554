"""``python -m paddle_serving_app.trace``: profile lines as a trace for ``chrome://tracing``.

It reads the lines of clients, model servers and pipelines alike; other lines are skipped.
"""

import argparse
import sys
from collections.abc import Sequence

from penstock import Analyst


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser("python -m paddle_serving_app.trace")
    add = parser.add_argument
    add("--profile_file", required=True, help="The log that has the profile lines.")
    add("--trace_file", default="trace", help="The file to write.")
    given = parser.parse_args(arguments)
    try:
        analyst = Analyst(given.profile_file)
        if not analyst.get_trace():
            print(f"error: {given.profile_file} has no profile lines", file=sys.stderr)
            return 1
        analyst.save_trace(given.trace_file)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
