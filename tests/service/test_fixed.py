"""What a reload cannot change."""

from __future__ import annotations

import pytest

from penstock.ops.op import Op
from penstock.service.blueprint import deploy
from penstock.service.fixed import differences, fixed_settings
from tests.service.in_process import blueprint_of, root


def settings(**config: object) -> dict[str, object]:
    return fixed_settings(deploy([blueprint_of(Op("work", input_ops=[root()]), config)]))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("host", "0.0.0.0", "host is '0.0.0.0', and the running service has '127.0.0.1'"),
        ("http_port", 8080, "http_port is 8080"),
        ("admin_port", 8081, "admin_port is 8081, and the running service has None"),
        ("door", {"unix_socket": "/tmp/s"}, "door.unix_socket is '/tmp/s'"),
        ("log_format", "json", "log_format is 'json'"),
        ("build_dag_each_worker", True, None),
        ("max_requests", 7, None),
        ("op", {"work": {"concurrency": 7}}, None),
        ("log_level", "debug", None),
    ],
)
def test_what_the_main_process_has_made_cannot_change(
    key: str, value: object, text: str | None
) -> None:
    found = list(differences(settings(), settings(**{key: value})))
    if text is None:
        assert found == []
    else:
        (line,) = found
        assert line.startswith(text)


def test_the_number_of_engines_cannot_change() -> None:
    one, two = (settings(build_dag_each_worker=True, worker_num=n) for n in (1, 2))
    assert [*differences(one, two)] == ["the number of engines is 2, and the running service has 1"]
