from __future__ import annotations

from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError
from penstock.service.blueprint import supervision_of
from tests.service.in_process import blueprint_of, root


class Coroutine(Op):
    async def process(self, feed_batch: Any, typical_logid: Any) -> Any:
        return feed_batch[0]


@pytest.mark.parametrize(
    ("kind", "executor"), [(Op, "thread"), (Op, "inline"), (Coroutine, "process")]
)
def test_on_timeout_kill_is_refused_for_ops_outside_of_processes(
    kind: type[Op], executor: str
) -> None:
    yaml = {"executor": executor, "on_timeout": "kill"}
    with pytest.raises(ConfigError, match=r"op.work.on_timeout: kill is for ops that run in proc"):
        blueprint_of(kind("work", input_ops=[root()]), {"op": {"work": yaml}})


def test_supervision_has_the_configured_values() -> None:
    yaml = {"executor": "process", "on_timeout": "kill"}
    yaml |= {"memory_limit_mib": 500, "max_batches": 9}
    for limit, seconds in ((0, None), (7, 7.0)):
        config = {"op": {"work": yaml}, "hang_limit": limit, "start_timeout": limit}
        blueprint = blueprint_of(Op("work", input_ops=[root()]), config)
        supervision = supervision_of(blueprint.options[0], blueprint.config)
        assert supervision.kill_late
        assert supervision.hang_limit == seconds
        assert supervision.start_timeout == seconds
        assert (supervision.memory_limit, supervision.max_batches) == (500 << 20, 9)


@pytest.mark.parametrize("key", ["memory_limit_mib", "max_batches"])
def test_replacement_keys_are_refused_for_ops_outside_of_processes(key: str) -> None:
    with pytest.raises(ConfigError, match=f"op.work.{key}: is for ops that run in processes"):
        blueprint_of(Op("work", input_ops=[root()]), {"op": {"work": {key: 100}}})
