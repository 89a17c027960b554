"""Triton, out of the wheel ``nvidia-pytriton``, with the model ``price`` or the model ``reader``.

The wheel holds ``tritonserver`` and its Python backend. ``make bench`` installs it into an
environment of its own, ``benchmarks/triton/.venv``, with ONNX Runtime and a numpy before version 2
(of arrays of later ones the backend sends no bytes). The model runs in one process of the backend,
with dynamic batching.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from benchmarks.models import FEATURES
from benchmarks.servers.options import ServerOptions, server_options

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ENVIRONMENT = Path(__file__).parents[1] / "triton" / ".venv"
PACKAGES = ENVIRONMENT / f"lib/python{_PYTHON}/site-packages"
SERVER = PACKAGES / "pytriton" / "tritonserver"
PROGRAM = SERVER / "bin" / "tritonserver"

_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 32
{tensors}
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "file" value {{ string_value: "{file}" }} }}
parameters {{ key: "padded" value {{ string_value: "{padded}" }} }}
"""
_TENSORS = {
    "price": f"""input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {FEATURES} ] }} ]
output [ {{ name: "price" data_type: TYPE_FP32 dims: [ 1 ] }} ]""",
    "reader": """input [
  { name: "tokens" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
]
output [ { name: "topic" data_type: TYPE_FP32 dims: [ 8 ] } ]""",
}


def prepare(model: Path, folder: Path, *, padded: bool) -> tuple[Path, Path]:
    """Create the model repository, and the backend's folder with the stub that runs it."""
    repository, backends = folder / "repository", folder / "backends"
    code, backend = repository / model.name / "1", backends / "python"
    for each in (code, backend):
        each.mkdir(parents=True, exist_ok=True)
    config = _CONFIG.format(
        name=model.name, tensors=_TENSORS[model.name], file=model / "model.onnx", padded=padded
    )
    (code.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    stub = SERVER / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    _link(Path(__file__).with_name("triton_model.py"), code / "model.py")
    for file in (stub, *(SERVER / "backends" / "python").iterdir()):
        _link(file, backend / file.name)
    return repository, backends


def _link(file: Path, place: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(file)


def main(options: ServerOptions) -> None:
    """Replace this process by the server."""
    (model,) = options.models
    repository, backends = prepare(model, Path.cwd(), padded=options.graph != "ragged-one")
    libraries = [PACKAGES / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        # The backend's interpreter belongs to the environment of the python3 that it finds first.
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
    }
    command = [str(PROGRAM), f"--model-repository={repository}", f"--backend-directory={backends}"]
    command += ["--allow-metrics=false", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    command += [f"--http-port={options.http_port}", f"--grpc-port={options.grpc_port}"]
    os.execve(PROGRAM, command, environment)


if __name__ == "__main__":
    main(server_options())
