"""The same network in the form of every library, as an op of a service."""

from pathlib import Path

import numpy as np
import pytest

from penstock import PipelineClient
from penstock.client import response_arrays
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import one_form_each
from tests.runtimes.test_same_answers import TOLERANCE
from tests.services.process import running

SERVICE = """
from penstock import Model, Service

net = Model({path!r}, name="net", concurrency=2, batch_size=8)
Service("nets", net, dag={{"is_thread_op": {threads}}}).run()
"""


@pytest.mark.real
@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
@pytest.mark.parametrize(("runtime", "form"), one_form_each())
def test_an_op_answers_many_callers_as_the_network_does(
    networks: Path, tmp_path: Path, runtime: str, form: str, threads: bool
) -> None:
    path = tmp_path / "service.py"
    path.write_text(SERVICE.format(path=str(networks / "sequence" / form), threads=threads))
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        feeds = [feed_of("sequence", 1 + at % 3, 4 + at % 3, at) for at in range(40)]
        asked = [
            client.predict(feed, asyn=True, pack_tensor_format=True, timeout=30) for feed in feeds
        ]
        for feed, future in zip(feeds, asked, strict=True):
            got = response_arrays(future.result())
            for name, value in answers("sequence", feed).items():
                np.testing.assert_allclose(got[name], value, rtol=0, atol=TOLERANCE)
        wrong = {"words": np.ones((1, 4), np.float32), "scale": np.ones((1, 1), np.float32)}
        refused = client.predict(wrong, pack_tensor_format=True, timeout=30)
        assert refused.err_no == 5000
        assert "expected int64[?, ?], got float32[1, 4]" in refused.err_msg
        waits = "keeps Python's global lock" in server.log()
        assert waits == (runtime == "paddle" and threads)
        assert server.stop() == 0
        assert "Traceback" not in server.log()
