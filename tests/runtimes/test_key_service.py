"""An encrypted model whose key is sent by the first client, as in Paddle Serving."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from paddle_serving_client import Client
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import needs
from tests.service.scripts import until
from tests.services.process import ServiceFailed, free_port, running

SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "--model")
CONF = """
feed_var { name: "x_in" alias_name: "x" feed_type: 1 shape: 13 }
fetch_var { name: "price.tmp_0" alias_name: "price" fetch_type: 1 shape: 1 }
"""


@pytest.mark.real
@needs("paddle")
@pytest.mark.timeout(240)  # several processes import the library in sequence
def test_the_model_is_decrypted_with_the_first_clients_key(networks: Path, tmp_path: Path) -> None:
    folder, port = networks / "encrypted/paddle", free_port()
    (tmp_path / "client.prototxt").write_text(CONF)
    flags = ["--use_encryption_model", "--port", str(port), "--encryption_rpc_port", "21000"]
    feed = feed_of("regression", 3)
    address = f"127.0.0.1:{port}"
    with running(folder, *flags, command=SERVE, cwd=tmp_path, ready=False) as server:
        while "waits for the model's key" not in server.log():
            with pytest.raises(ServiceFailed, match="still running"):
                server.wait_exit(0.05)
        for wrong in ("{}", "[]", '{"key": "?"}', '{"key": "AAAAAAAAAAAAAAAAAAAAAA=="}'):
            reply = httpx.post(f"http://{address}/", content=wrong, timeout=120).json()
            assert reply["message"].startswith("start serving failed")
        refused = "encrypt_model is not encrypted with this key"
        until(lambda: refused in server.log(), "the refused key is logged")
        assert httpx.post(f"http://{address}/", content=b"x" * 5000).status_code == 413
        for _ in range(2):
            client = Client()
            client.load_client_config(str(tmp_path / "client.prototxt"))
            client.use_key(str(folder / "key"))
            client.connect([address], encryption=True)
            got = client.predict(feed, fetch=["price"], batch=True)
            assert got is not None
            expected = answers("regression", feed)["price"]
            np.testing.assert_allclose(got["price"], expected, rtol=0, atol=1e-5)
        other = httpx.post(f"http://{address}/", content='{"key": "AAAA"}').json()
        assert other == {"message": "start serving failed: the model is served with another key"}
        assert {each.name for each in tmp_path.iterdir()} == {"client.prototxt", "ProcessInfo.json"}
        assert server.stop() == 0
        assert server.leftovers() == []
