"""The networks in the four forms of Paddle.

Programs before Paddle 3 are put together op by op, as Paddle's layers did.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.networks import B1, B2, EMBEDDING, NETWORKS, W1, W2, W3, write_conf

FORMS = ("json", "pdmodel", "combined", "separate")


def save(folder: Path, network: str, form: str) -> Path:
    """Write the model; its inner names are not the public ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "json":
            _save_json(folder, network)
            fetched = [f"fetch_name_{at}" for at in range(len(NETWORKS[network].outputs))]
        else:
            _save_program(folder, network, form)
            fetched = [f"{name}.tmp_0" for name in NETWORKS[network].outputs]
    write_conf(folder, network, [f"{name}_in" for name in NETWORKS[network].inputs], fetched)
    return folder


def _save_json(folder: Path, network: str) -> None:
    import paddle

    class Regression(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = paddle.nn.Linear(13, 64), paddle.nn.Linear(64, 1)
            for layer, weight, bias in ((self.hidden, W1, B1), (self.last, W2, B2)):
                layer.weight.set_value(weight)
                layer.bias.set_value(bias)

        def forward(self, x_in: Any) -> Any:
            return self.last(paddle.nn.functional.relu(self.hidden(x_in)))

    class Sequence(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = paddle.nn.Embedding(*EMBEDDING.shape)
            self.embedding.weight.set_value(EMBEDDING)
            self.last = paddle.nn.Linear(16, 5, bias_attr=False)
            self.last.weight.set_value(W3)

        def forward(self, words_in: Any, scale_in: Any) -> Any:
            scores = paddle.tanh(self.last(self.embedding(words_in))) * scale_in.unsqueeze(1)
            return scores, scores.max(axis=1)

    net = Regression() if network == "regression" else Sequence()
    net.eval()
    spec = [
        paddle.static.InputSpec([*shape], np.dtype(dtype).name, f"{name}_in")
        for name, (dtype, shape) in NETWORKS[network].inputs.items()
    ]
    paddle.jit.save(net, str(folder / "inference"), input_spec=spec)


class Program:
    """Builds a program of Paddle 2; outside of it, Paddle 3 is unchanged."""

    def __init__(self) -> None:
        import paddle
        from paddle.pir_utils import OldIrGuard

        self._paddle = paddle
        self._guard = OldIrGuard()
        paddle.enable_static()
        self._guard.__enter__()
        self._program = paddle.static.Program()
        self._block = self._program.global_block()
        self._scope = paddle.static.global_scope()

    def input(
        self, name: str, dtype: Any, shape: tuple[int | None, ...], lod_level: int = 0
    ) -> Any:
        dims = [-1 if dim is None else dim for dim in shape]
        return self._block.create_var(
            name=name,
            shape=dims,
            dtype=np.dtype(dtype).name,
            lod_level=lod_level,
            is_data=True,
            need_check_feed=True,
            stop_gradient=True,
        )

    def parameter(self, name: str, value: np.ndarray) -> Any:
        self._scope.var(name).get_tensor().set(value, self._paddle.CPUPlace())
        return self._block.create_parameter(shape=value.shape, dtype=value.dtype.name, name=name)

    def op(
        self, kind: str, name: str, shape: list[int], inputs: dict[str, Any], **more: Any
    ) -> Any:
        lod_level = more.pop("lod_level", 0)
        made = self._block.create_var(name=name, shape=shape, dtype="float32", lod_level=lod_level)
        outputs = {"Out": [made]}
        for each in more.pop("extra", ()):
            outputs[each] = [self._block.create_var(name=f"{name}.{each}", dtype="int32")]
        given = {key: [value] for key, value in inputs.items()}
        self._block.append_op(type=kind, inputs=given, outputs=outputs, attrs=more)
        return made

    def save(self, folder: Path, form: str, inputs: list[Any], outputs: list[Any]) -> None:
        paddle, io = self._paddle, self._paddle.static.io
        try:
            program = io.normalize_program(self._program, inputs, outputs)
            executor = paddle.static.Executor(paddle.CPUPlace())
            names = {
                "pdmodel": ("inference.pdmodel", "params.pdiparams"),
                "combined": ("__model__", "__params__"),
                "separate": ("__model__", None),
            }
            model, params = names[form]
            (folder / model).write_bytes(io._serialize_program(program))
            if not any(map(io.is_persistable, program.list_vars())):
                return
            if params:
                (folder / params).write_bytes(io._serialize_persistables(program, executor))
            else:
                io.save_vars(
                    executor, str(folder), program, predicate=io.is_persistable, filename=None
                )
        finally:
            self._guard.__exit__(None, None, None)
            paddle.disable_static()


def _save_program(folder: Path, network: str, form: str) -> None:
    program = Program()
    given = [
        program.input(f"{name}_in", dtype, shape)
        for name, (dtype, shape) in NETWORKS[network].inputs.items()
    ]
    if network == "regression":
        out = given[0]
        for layer, (weight, bias) in enumerate(((W1, B1), (W2, B2))):
            w = program.parameter(f"fc_{layer}.w_0", weight)
            b = program.parameter(f"fc_{layer}.b_0", bias)
            shape = [-1, weight.shape[1]]
            out = program.op("mul", f"fc_{layer}.tmp_0", shape, {"X": out, "Y": w})
            name = "price.tmp_0" if layer else f"fc_{layer}.tmp_1"
            out = program.op("elementwise_add", name, shape, {"X": out, "Y": b}, axis=1)
            if not layer:
                out = program.op("relu", f"fc_{layer}.tmp_2", shape, {"X": out})
        fetched = [out]
    else:
        words, scale = given
        weights = program.parameter("embedding_0.w_0", EMBEDDING)
        w3 = program.parameter("fc_0.w_0", W3)
        shape = [-1, -1, 5]
        e = program.op("lookup_table_v2", "e.tmp_0", [-1, -1, 16], {"W": weights, "Ids": words})
        p = program.op("matmul_v2", "p.tmp_0", shape, {"X": e, "Y": w3})
        t = program.op("tanh", "t.tmp_0", shape, {"X": p})
        s = program.op(
            "unsqueeze2", "s.tmp_0", [-1, 1, 1], {"X": scale}, axes=[1], extra=["XShape"]
        )
        scores = program.op("elementwise_mul", "scores.tmp_0", shape, {"X": t, "Y": s}, axis=-1)
        best = program.op("reduce_max", "best.tmp_0", [-1, 5], {"X": scores}, dim=[1])
        fetched = [scores, best]
    program.save(folder, form, given, fetched)


def save_lod(folder: Path) -> Path:
    """``rows`` [n, 4] with lod to ``twice`` with the same lod, and ``pooled``, the maxima."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program()
        rows = program.input("rows", np.float32, (None, 4), lod_level=1)
        twice = program.op("scale", "twice", [-1, 4], {"X": rows}, scale=2.0, lod_level=1)
        pooled = program.op(
            "sequence_pool",
            "pooled",
            [-1, 4],
            {"X": twice},
            pooltype="MAX",
            is_test=True,
            pad_value=0.0,
            extra=["MaxIndex"],
        )
        program.save(folder, "pdmodel", [rows], [twice, pooled])
    return folder


def save_boxes(folder: Path) -> Path:
    """A detector, in the form of Paddle 3 with the configuration of an older one: for ``image``
    [n, k], a row [value, column] for each positive value, and how many rows each picture has.

    Its input is declared with rank 3, though it works with rank 2 as well.
    """
    import paddle

    class Boxes(paddle.nn.Layer):  # type: ignore[misc]
        def forward(self, image: Any) -> Any:
            flat = image.reshape([image.shape[0], -1])
            found = paddle.nonzero(flat > 0)
            values = paddle.gather_nd(flat, found).unsqueeze(1)
            boxes = paddle.concat([values, found[:, 1:].astype("float32")], axis=1)
            return boxes, (flat > 0).astype("int32").sum(axis=1).astype("int32")

    net = Boxes()
    net.eval()
    spec = [paddle.static.InputSpec([-1, 1, -1], "float32", "image")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paddle.jit.save(net, str(folder / "inference"), input_spec=spec)
    text = "".join(
        f'fetch_var {{ name: "save_infer_model/scale_{at}.tmp_1" is_lod_tensor: {lod} }}\n'
        for at, lod in enumerate(("true", "false"))
    )
    (folder / "serving_server_conf.prototxt").write_text(f'feed_var {{ name: "image" }}\n{text}')
    return folder


def save_encrypted(folder: Path, plain: Path) -> Path:
    """The model of a folder with ``__model__`` and ``__params__``, encrypted as Paddle does it; the
    key is in the file ``key`` beside it.
    """
    import paddle

    core = paddle.base.core
    key = core.CipherUtils.gen_key_to_file(128, str(folder / "key"))
    cipher = core.CipherFactory.create_cipher("")
    for name, encrypted in (("__model__", "encrypt_model"), ("__params__", "encrypt_params")):
        cipher.encrypt_to_file((plain / name).read_bytes(), key, str(folder / encrypted))
    conf = "serving_server_conf.prototxt"
    (folder / conf).write_text((plain / conf).read_text())
    return folder
