"""Sends the keys of encrypted models to the model servers that ops call.

As in the original, the first of an op's ``server_endpoints`` is a key service. It gets the key,
starts the model server, and returns the server's port. The key is sent in plain text, so only to a
key service on this machine.

Source: ``docs/compatibility.md`` (remote ops).
"""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from dataclasses import replace

from penstock.client.remote_options import RemoteOptions
from penstock.config.resolve import OpOptions
from penstock.door.listeners import is_loopback
from penstock.errors import ModelError
from penstock.runtimes.paddle_files import read_key
from penstock.service.blueprint import Deployment


def send_keys(deployment: Deployment) -> Deployment:
    """The deployment with the addresses at which the models are then served.

    Raises:
        ModelError: there is no key, or the key service does not serve the model.
    """
    timeout = deployment.config.start_timeout or None
    return deployment.each(
        lambda graph: replace(
            graph, options=tuple(_calling(each, timeout) for each in graph.options)
        )
    )


def _calling(options: OpOptions, timeout: float | None) -> OpOptions:
    remote = options.remote
    if remote is None or remote.encryption_key is None:
        return options
    return replace(options, remote=_with_address(remote, remote.encryption_key, timeout))


def _with_address(remote: RemoteOptions, source: str, timeout: float | None) -> RemoteOptions:
    where = f"op {remote.op!r}: use_encryption_model"
    at = remote.endpoints[0]
    if not is_loopback(at.host):
        raise ModelError(
            f"{where}: the key would be sent in plain text to {at}: the first of server_endpoints"
            " must be on this machine"
        )
    key = b64encode(read_key(source)).decode()
    answer = None
    connection = http.client.HTTPConnection(at.host, at.port, timeout=timeout)
    try:
        connection.request("POST", "/", json.dumps({"key": key}))
        answer = json.loads(connection.getresponse().read())
        port = int(answer["endpoint_list"][0])
    except (OSError, http.client.HTTPException) as error:
        raise ModelError(f"{where}: the key service at {at} does not answer: {error}") from error
    except (ValueError, KeyError, TypeError, IndexError):
        why = answer.get("message") if isinstance(answer, dict) else "invalid answer"
        raise ModelError(f"{where}: {at} does not serve the model: {why}") from None
    finally:
        connection.close()
    return replace(remote, endpoints=(replace(at, port=port),), encryption_key=None)
