"""``penstock convert``: versions of models in a repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from numpy.typing import NDArray
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import ModelError, StoreError
from penstock.repository.manifest import MANIFEST, parse_manifest
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions
from penstock.store.cache import Cache
from penstock.store.convert import convert
from penstock.store.signing import PublicKeys
from penstock.store.source import Source
from tests.kit import onnx_models
from tests.store.test_source import fetch, files_of, write_keys

X: NDArray[np.float32] = np.array([[1, 2, 3]], np.float32)


def names(folder: Path) -> list[str]:
    return sorted(
        each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()
    )


def answer(folder: Path) -> NDArray[np.float32]:
    found: NDArray[np.float32] = Model.open(ModelOptions(path=str(folder))).run({"x": X})["y"]
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return onnx_models.scale(tmp_path / "double.onnx", 2.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_a_version_has_the_model_its_signature_and_a_manifest(
    model: Path, repository: Path
) -> None:
    made = convert(model, repository)
    assert made.path == repository / "double/1"
    assert names(repository) == [
        f"double/1/{each}" for each in ("model.onnx", MANIFEST, "signature.json")
    ]
    assert json.loads((made.path / "signature.json").read_text()) == {
        "inputs": [{"name": "x", "dtype": "float32", "datatype": "FP32", "shape": ["n", 3]}],
        "outputs": [
            {"name": "y", "dtype": "float32", "datatype": "FP32", "shape": ["n", 3]},
            {"name": "twice", "dtype": "float32", "datatype": "FP32", "shape": ["n", 3]},
        ],
    }
    manifest = parse_manifest((made.path / MANIFEST).read_bytes())
    assert (manifest.model, manifest.version) == ("double", "1")
    assert [each.path for each in manifest.files] == ["model.onnx", "signature.json"]
    np.testing.assert_array_equal(answer(made.path), X * 2)


def test_a_version_is_fetched_with_its_manifest(
    model: Path, repository: Path, tmp_path: Path
) -> None:
    convert(model, repository)
    fetched = fetch(Source(repository, settle=10**6), Cache(tmp_path / "cache"), "double/1")
    assert sorted(files_of(fetched)) == ["model.onnx", "signature.json"]


def test_the_next_version_has_the_next_number(model: Path, repository: Path) -> None:
    for there in ("7", "003", "notes"):
        (repository / "double" / there).mkdir(parents=True)
    assert [convert(model, repository).version for _ in range(2)] == ["8", "9"]


def test_versions_that_are_made_at_once_get_different_numbers(
    model: Path, repository: Path
) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(convert(model, repository).version))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(made) == ["1", "2", "3", "4"]
    assert sorted(os.listdir(repository / "double")) == sorted(made)


def test_weights_beside_a_model_come_along(tmp_path: Path, repository: Path) -> None:
    source = onnx_models.save(
        tmp_path / "large.onnx",
        "(float[n, 3] x) => (float[n, 3] y) { y = Mul(x, w) }",
        w=np.full(3, 5, np.float32),
    )
    (tmp_path / "weights").mkdir()
    onnx.save_model(
        onnx.load(source),
        source,
        save_as_external_data=True,
        location="weights/large.data",
        size_threshold=0,
    )
    made = convert(source, repository)
    assert "weights/large.data" in names(made.path)
    np.testing.assert_array_equal(answer(made.path), X * 5)
    (tmp_path / "weights/large.data").unlink()
    with pytest.raises(ModelError, match=r"weights in weights/large\.data, which does not exist"):
        convert(source, repository)


def test_a_folder_is_copied_with_all_that_belongs_to_it(
    model: Path, repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    model.rename(folder / "double.onnx")
    for name in ("labels.txt", ".hidden", MANIFEST):
        (folder / name).write_text("cat")
    made = convert(folder, repository, name="pets")
    assert names(made.path) == ["double.onnx", "labels.txt", MANIFEST, "signature.json"]
    assert convert(made.path, repository).name == "pets"  # the folder of a version


def test_examples_are_run_and_kept(model: Path, repository: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=X)
    made = convert(model, repository, examples=[tmp_path / "good.npz"] * 2)
    assert [each for each in names(made.path) if "npz" in each] == [
        "examples/1.npz",
        "examples/2.npz",
    ]
    np.savez(tmp_path / "bad.npz", x=X[:, :2])
    np.savez(tmp_path / "other.npz", z=X)
    (tmp_path / "none.npz").write_bytes(b"none")
    np.save(tmp_path / "single.npz", X)
    (tmp_path / "single.npz.npy").rename(tmp_path / "single.npz")
    for name, reason in (
        ("bad", "does not run on the example"),
        ("other", "does not run on the example"),
        ("none", "cannot be read"),
        ("single", "cannot be read"),
        ("gone", "cannot be read"),
    ):
        with pytest.raises(ModelError, match=f"{reason} .*{name}|{name}.* {reason}"):
            convert(model, repository, examples=[tmp_path / f"{name}.npz"])
    assert os.listdir(repository / "double") == ["1"]


def test_a_signed_version_is_accepted_with_its_key(
    model: Path, repository: Path, tmp_path: Path
) -> None:
    write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate())
    convert(model, repository, key=tmp_path / "key.pem")
    source = Source(repository, keys=PublicKeys.read(tmp_path / "public.pem"), settle=0)
    assert len(files_of(fetch(source, Cache(tmp_path / "cache"), "double/1"))) == 2


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a\nb", ""])
def test_a_name_that_leaves_the_repository_is_refused(
    model: Path, repository: Path, name: str
) -> None:
    with pytest.raises(StoreError, match="the model's name"):
        convert(model, repository, name=name)
    assert not repository.exists()


def test_a_link_out_of_a_models_folder_is_refused(
    model: Path, repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "model.onnx").symlink_to(model)
    with pytest.raises(StoreError, match=r"model\.onnx is a link that leaves"):
        convert(folder, repository)


def test_what_no_library_opens_is_told_plainly(repository: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(b"tensorflow")
    for source, reason in (
        (saved, "no model that a runtime here can open"),
        (tmp_path / "gone.onnx", "no such file"),
    ):
        with pytest.raises(ModelError, match=reason):
            convert(source, repository)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x3a\xff\xff\xff\xff\x0f")
    with pytest.raises(ModelError, match=r"no ONNX model|cannot open"):
        convert(broken, repository)
    broken.write_bytes(b"")
    with pytest.raises(ModelError) as told:
        convert(broken, repository)
    assert ".new-" not in str(told.value)
    assert str(broken) in str(told.value)
    assert [*repository.iterdir()] == []


def test_a_conversion_that_no_library_here_makes_names_the_tool(
    model: Path, repository: Path
) -> None:
    with pytest.raises(ModelError, match="no library here converts a model of onnx to torch"):
        convert(model, repository, to="torch")
    assert convert(model, repository, to="onnx").runtime == "onnx"


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_openvino_converts_a_model_of_onnx(model: Path, repository: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from penstock.store.convert import convert;"
        "print(convert(Path(sys.argv[1]), Path(sys.argv[2]), to='openvino').runtime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), str(repository)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["openvino"], done.stderr
    assert "model.xml" in names(repository / "double/1")


def test_the_command_prints_the_version_and_what_it_takes(model: Path, repository: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(model), str(repository)])
    assert done.exit_code == 0, done.output
    first, takes, gives, digest = done.output.splitlines()
    assert first.startswith(f"{repository}/double/1  onnx, 2 files, ")
    assert takes == "  takes  x float32[?, 3]"
    assert gives == "  gives  y float32[?, 3], twice float32[?, 3]"
    assert len(digest.split()[1]) == 64


def test_the_command_ends_with_the_reason(model: Path, repository: Path) -> None:
    done = CliRunner().invoke(app, ["convert", f"{model}.gone", str(repository)])
    assert (done.exit_code, "no such file or folder" in done.output) == (1, True)
    done = CliRunner().invoke(app, ["convert", str(model), "s3://bucket/models"])
    assert (done.exit_code, "upload with your store's tool" in done.output) == (2, True)
