"""``PipelineClient``, under the original's module name.

Its first releases returned a dict. Code written for them reads ``result["ecode"]``: after an import
of this module, that and its other keys can be read from a response.
"""

from typing import Any

from penstock import PipelineClient
from penstock.client.messages import response_arrays
from penstock.protocols.array_text import parse_array
from penstock.protocols.pb import Response

__all__ = ["PipelineClient"]


def _item(response: Response, key: str) -> Any:
    """Return ``ecode``, the error number; ``error_info``, its text; or the result of this name: an
    array if its text is that of one, else the text.

    Raises:
        KeyError: there is no result of this name.
    """
    if key == "ecode":
        return response.err_no
    if key == "error_info":
        return response.err_msg
    texts = dict(zip(response.key, response.value, strict=False))
    if key not in texts:
        return response_arrays(response)[key]
    try:
        return parse_array(texts[key])
    except ValueError:
        return texts[key]


Response.__getitem__ = _item  # type: ignore[misc]
