"""nginx and haproxy as processes of the tests, without root and without system files."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

from tests.peers.programs import program, without_proxies

START_SECONDS = 10.0

NGINX = """
daemon off;
user {user};
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log info;
events {{ worker_connections 512; }}
http {{
  log_format seen '$server_protocol $status $upstream_status $uri';
  access_log {folder}/access.log seen;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 256m;
  {site}
}}
"""


def nginx_site(
    *,
    listen: Sequence[str],
    http: int,
    grpc: Mapping[str, int] | None = None,
    tls: tuple[Path, Path] | None = None,
) -> str:
    """nginx's configuration that forwards paths to ports, over reused connections."""
    listens = "\n".join(f"listen {address};" for address in listen)
    certificate = "" if tls is None else f"ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]};"
    calls = "\n".join(
        f"location {path} {{ grpc_pass grpc://127.0.0.1:{port}; grpc_read_timeout 60s; }}"
        for path, port in (grpc or {}).items()
    )
    return f"""
      upstream service {{ server 127.0.0.1:{http}; keepalive 4; }}
      server {{
        {listens}
        {certificate}
        location / {{
          proxy_pass http://service;
          proxy_http_version 1.1;
          proxy_set_header Connection "";
          proxy_set_header Host $http_host;
        }}
        {calls}
      }}
    """


@contextmanager
def nginx(folder: Path, site: str, port: int) -> Iterator[Path]:
    """nginx with a site, ready on ``port``; yields the path of its access log."""
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, user=getuser(), site=site))
    command = [program("nginx"), "-c", str(config), "-p", str(folder), "-e", f"{folder}/error.log"]
    with background(command, folder / "out.log", port):
        yield folder / "access.log"


HAPROXY = """
global
  nbthread 1
  log stdout format raw local0
defaults
  mode http
  log global
  log-format "%HV %ST %ST %HP"
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  option http-keep-alive
  http-reuse always
{site}
"""


@contextmanager
def haproxy(folder: Path, site: str, port: int) -> Iterator[Path]:
    """haproxy with a site, ready on ``port``; yields the path of its access log."""
    folder.mkdir()
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(site=site))
    command = [program("haproxy"), "-db", "-f", str(config)]
    with background(command, folder / "out.log", port):
        yield folder / "out.log"


def passed(log: Path, path: str) -> int:
    """How many requests for ``path`` a proxy forwarded and got status 200 for, by its log."""
    lines = [line.split(" ") for line in log.read_text(errors="replace").splitlines()]
    return sum(line[1:4] == ["200", "200", path] for line in lines)


@contextmanager
def background(command: Sequence[str], log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program that listens on ``port`` until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=without_proxies(),
            start_new_session=True,
        )
    try:
        wait_listening(process, log, port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_listening(process: subprocess.Popen[bytes], log: Path, port: int) -> None:
    """Wait until the program listens on the port.

    Raises:
        AssertionError: the program ended, or does not listen in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            # The pause between two attempts, which also notices the program's end.
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
        raise AssertionError(f"{process.args!r} does not listen:\n{log.read_text()[-3000:]}")
