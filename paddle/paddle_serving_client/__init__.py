"""The public names of ``paddle-serving-client``, for Penstock's clients."""

from penstock_paddle import ORIGINAL_VERSION, refuse_originals

refuse_originals()

from paddle_serving_client.client import Client  # noqa: E402 (the check comes before all imports)
from paddle_serving_client.httpclient import HttpClient  # noqa: E402

__version__ = ORIGINAL_VERSION

__all__ = ["Client", "HttpClient"]
