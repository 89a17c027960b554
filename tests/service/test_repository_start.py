"""Repositories in stores, whose models do not change: fetched once, before the service starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from penstock.errors import CacheFull, ConfigError
from penstock.repository.manifest import MANIFEST, SIGNATURE
from penstock.repository.options import Repositories
from penstock.service.repository_start import read_start
from penstock.store.cache import Cache
from penstock.store.signing import sign
from tests.kit.repositories import make_repository, model
from tests.store.test_source import manifest_of


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL under which a server shows it."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.daemon_threads = False  # they are joined
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_models_of_a_store_are_fetched_and_stay_in_the_cache(
    web: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = web
    make_repository(folder / "models")
    local = tmp_path / "local"
    model(local / "own", "(float[n] x) => (float[n] y) { y = Add(x, x) }")
    cache = tmp_path / "cache"
    start = read_start(Repositories(places=(f"{url}/models", str(local)), cache=str(cache)))
    assert "fsspecIO" not in [each.name for each in threading.enumerate()]  # it prevents forks
    served = {name: [x["version"] for x in each] for name, each in start.descriptions.items()}
    assert served["both"] == ["9", "10"]
    assert served["own"] == ["1"]
    (rank,) = start.descriptions["rank"]
    assert [each["name"] for each in rank["steps"]] == ["encoder", "head"]
    (encoder,) = start.descriptions["encoder"]
    assert Path(encoder["path"], "model.onnx").is_file()
    assert Path(encoder["folder"], "warmup", "six").is_file()
    assert encoder["path"].startswith(str(cache))
    with Cache(cache, limit=1).staging("new", "1") as staging, pytest.raises(CacheFull):
        staging.reserve(1)  # would remove what is not in use
    assert Path(encoder["path"], "model.onnx").is_file()


def test_a_store_that_does_not_answer_and_bad_models_are_all_reported(
    web: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = web
    model(folder / "models" / "m", "(float[n] x) => (float[n] y) { y = Add(x, x) }", "nope: 1")
    places = (f"{url}/models", "http://127.0.0.1:1/models")
    with pytest.raises(ConfigError) as raised:
        read_start(Repositories(places=places, cache=str(tmp_path / "cache")))
    first, second = sorted(raised.value.problems)
    assert first.startswith("http://127.0.0.1:1/models: ")
    assert "m/config.pbtxt:1: nope: is not a known field" in second


def test_with_a_key_only_signed_versions_of_a_folder_are_opened_and_only_their_copies(
    tmp_path: Path,
) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "public.pem").write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    root = tmp_path / "models"
    file = model(root / "m", "(float[n] x) => (float[n] y) { y = Add(x, x) }")
    repositories = Repositories(
        places=(str(root),),
        cache=str(tmp_path / "cache"),
        public_key=str(tmp_path / "public.pem"),
    )
    with pytest.raises(ConfigError, match=r"m/1: it has no penstock-manifest\.json, which must be"):
        read_start(repositories)
    manifest = manifest_of({"model.onnx": file.read_bytes()})
    (file.parent / MANIFEST).write_bytes(manifest)
    (file.parent / SIGNATURE).write_bytes(sign(manifest, tmp_path / "key.pem"))
    (description,) = read_start(repositories).descriptions["m"]
    assert Path(description["path"]).is_relative_to(tmp_path / "cache")
