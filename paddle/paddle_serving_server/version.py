"""The version of the original whose names this package has.

``importlib.metadata.version("penstock-paddle")`` is the version of the distribution.
"""

from penstock_paddle import ORIGINAL_VERSION

__all__ = ["module_proto_version", "serving_server_version"]

serving_server_version = ORIGINAL_VERSION
module_proto_version = ORIGINAL_VERSION
