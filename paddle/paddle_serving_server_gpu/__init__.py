"""The same modules as ``paddle_serving_server``: Penstock chooses the device by configuration."""

import paddle_serving_server
from penstock_paddle import ORIGINAL_VERSION

__version__ = ORIGINAL_VERSION
__path__ = paddle_serving_server.__path__
