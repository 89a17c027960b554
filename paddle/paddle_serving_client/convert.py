"""``python -m paddle_serving_client.convert``: converts a saved model for serving."""

import argparse
import sys
from collections.abc import Sequence

from paddle_serving_client.io import inference_model_to_serving
from penstock.errors import ModelError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser("python -m paddle_serving_client.convert")
    add = parser.add_argument
    add("--dirname", required=True, help="The folder of the saved model.")
    add("--serving_server", default="serving_server", help="The model's folder to write.")
    add("--serving_client", default="serving_client", help="The client's folder to write.")
    add("--model_filename", help="The program's file, if it has no usual name.")
    add("--params_filename", help="The file of all parameters.")
    add(
        "--show_proto",
        type=_boolean,
        default=False,
        metavar="true|false",
        help="Only print the configuration.",
    )
    add("--feed_alias_names", help="Comma-separated public names of the inputs.")
    add("--fetch_alias_names", help="The same of the outputs, in the order of their own names.")
    given = parser.parse_args(arguments)
    try:
        inference_model_to_serving(**vars(given))
    except (ModelError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"true or false, not {text!r}")
    return text.lower() in ("true", "1")


if __name__ == "__main__":
    sys.exit(main())
