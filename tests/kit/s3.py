"""An S3 server with outages: moto's, on this machine's loopback address.

Its objects are in this process; ``stop`` and ``start`` make an outage, and ``fault`` answers in its
place: late, cut off, with an empty list, or with an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

HOST: Final = "127.0.0.1"
EMPTY_LIST: Final = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>
<MaxKeys>1000</MaxKeys><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"""

Answer = Iterable[bytes]
Environ = dict[str, Any]
Start = Callable[..., Any]
Fault = Callable[[Environ, Start], Answer | None]
"""Answers a request in the server's place; None: the server answers it."""


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class S3:
    """A server with one bucket at a time.

    Attributes:
        port: of the server; the same after an outage.
        fault: what answers in the server's place, if anything.
        requests: method and path of each request, with its query.
        client: of AWS, for this server.
    """

    def __init__(self) -> None:
        self.port = 0
        self.fault: Fault | None = None
        self.requests: list[str] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer | None = None
        self._thread: threading.Thread | None = None
        self.start()
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._server = make_server(
            HOST, self.port, self._answer, threaded=True, request_handler=_Quiet
        )
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def make_bucket(self, bucket: str) -> None:
        self.client.create_bucket(Bucket=bucket)

    def put(self, key: str, data: bytes) -> None:
        """Write an object.

        Args:
            key: the bucket, a slash and the object's key.
            data: its content.
        """
        bucket, _, name = key.partition("/")
        self.client.put_object(Bucket=bucket, Key=name, Body=data)

    def delete(self, key: str) -> None:
        bucket, _, name = key.partition("/")
        self.client.delete_object(Bucket=bucket, Key=name)

    def _answer(self, environ: Environ, start: Start) -> Answer:
        query = environ.get("QUERY_STRING", "")
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{query}")
        fault = self.fault
        answered = None if fault is None else fault(environ, start)
        if answered is not None:
            return answered
        found: Answer = self._app(environ, start)
        return found


def is_listing(environ: Environ) -> bool:
    return "list-type=2" in environ.get("QUERY_STRING", "")


def empty_list(environ: Environ, start: Start) -> Answer | None:
    """A fault: no files are there."""
    if not is_listing(environ):
        return None
    start("200 OK", [("Content-Type", "application/xml")])
    return [EMPTY_LIST]


def failing(environ: Environ, start: Start) -> Answer | None:
    """A fault: each request fails."""
    start("403 Forbidden", [("Content-Type", "application/xml")])
    return [b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"]
