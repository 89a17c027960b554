"""Writes the two folders for serving a model: files and configuration of server and client.

The program is copied unchanged: Penstock opens programs of every Paddle version.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.errors import ModelError
from penstock.protocols import oip
from penstock.protocols.general_model import CODES
from penstock.runtimes.model import CONF_FILES, Model
from penstock.runtimes.paddle_files import (
    ENCRYPTED_PARAMS,
    ENCRYPTED_PROGRAM,
    PaddleFiles,
    paddle_files,
)
from penstock.runtimes.prototxt import ModelConf, Variable, format_model_conf
from penstock.runtimes.runtime import ModelOptions
from penstock.tensor import TensorSpec

__all__ = ["inference_model_to_serving", "save_dygraph_model", "save_model"]

_PARAMS: Final = "params.pdiparams"
_UNKNOWN_TYPE: Final = -1
_KEY: Final = "key"
_KEY_BYTES: Final = 16


def inference_model_to_serving(
    dirname: str,
    serving_server: str = "serving_server",
    serving_client: str = "serving_client",
    model_filename: str | None = None,
    params_filename: str | None = None,
    encryption: bool = False,
    key_len: int = 128,
    encrypt_conf: Any = None,
    show_proto: bool = False,
    feed_alias_names: str | None = None,
    fetch_alias_names: str | None = None,
) -> tuple[list[str], list[str]]:
    """Write both folders for a saved model.

    Args:
        dirname: the model's folder.
        serving_server: the folder to write the model and its configuration to.
        serving_client: the folder to write the client's configuration to.
        model_filename: the program's file, if it has no usual name.
        params_filename: the file of all parameters; with ``model_filename`` alone, each parameter
            has a file of its own.
        encryption: encrypt the model with a new key, which is written to ``key`` in the working
            directory. Not for programs of Paddle 3 or separate parameter files.
        key_len: no effect; a key has 128 bits.
        encrypt_conf: no effect.
        show_proto: only print the configuration.
        feed_alias_names: comma-separated public names of the inputs.
        fetch_alias_names: comma-separated public names of the outputs, in the alphabetical order of
            the outputs' own names.

    Returns:
        The model's own names of its inputs and outputs.

    Raises:
        ModelError: there is no Paddle model, or it cannot be opened.
        ValueError: the numbers of aliases and variables differ.
    """
    files = _files(Path(dirname), model_filename, params_filename)
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        copy = Path(folder)
        _copy(files, copy)
        model = Model.open(ModelOptions(path=folder))
        outputs = sorted(model.outputs, key=lambda spec: spec.name)
        conf = ModelConf(
            feeds=_variables("feed_alias_names", model.inputs, feed_alias_names),
            fetches=_variables("fetch_alias_names", outputs, fetch_alias_names),
            source=dirname,
        )
        if show_proto:
            print(format_model_conf(conf)[0], end="")
        else:
            if encryption:
                _encrypt(copy)
            shutil.copytree(copy, serving_server, dirs_exist_ok=True)
            _write(conf, Path(serving_server), CONF_FILES[0])
            _write(conf, Path(serving_client), CONF_FILES[1])
    return [each.name for each in conf.feeds], [each.name for each in conf.fetches]


def save_model(
    server_model_folder: str,
    client_config_folder: str,
    feed_var_dict: Mapping[str, Any],
    fetch_var_dict: Mapping[str, Any],
    main_program: Any = None,
    encryption: bool = False,
    key_len: int = 128,
    encrypt_conf: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    show_proto: bool = False,
    feed_alias_names: str | None = None,
    fetch_alias_names: str | None = None,
) -> None:
    """Save the part of a static program between inputs and outputs, and write both folders.

    Args:
        server_model_folder: the folder to write the model and its configuration to.
        client_config_folder: the folder to write the client's configuration to.
        feed_var_dict: the inputs by their public names.
        fetch_var_dict: the outputs by their public names.
        main_program: the program; the default is Paddle's default program.
        encryption: see ``inference_model_to_serving``.
        key_len: no effect.
        encrypt_conf: no effect.
        model_filename: no effect; the files are called ``model.*`` and ``params.*``.
        params_filename: no effect.
        show_proto: only print the configuration.
        feed_alias_names: comma-separated names of the inputs that replace those of the dict.
        fetch_alias_names: comma-separated names of the outputs that replace those of the dict, in
            the dict's alphabetical order.
    """
    import paddle

    fetches = sorted(fetch_var_dict)
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        paddle.static.save_inference_model(
            f"{folder}/model",
            list(feed_var_dict.values()),
            [fetch_var_dict[name] for name in fetches],
            paddle.static.Executor(paddle.CPUPlace()),
            program=main_program,
        )
        inference_model_to_serving(
            folder,
            server_model_folder,
            client_config_folder,
            encryption=encryption,
            show_proto=show_proto,
            feed_alias_names=feed_alias_names or ",".join(feed_var_dict),
            fetch_alias_names=fetch_alias_names or ",".join(fetches),
        )


def save_dygraph_model(serving_model_folder: str, client_config_folder: str, model: Any) -> None:
    """Write both folders for a layer whose inputs ``paddle.jit.to_static`` has specified."""
    import paddle

    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        paddle.jit.save(model, f"{folder}/model")
        inference_model_to_serving(folder, serving_model_folder, client_config_folder)


def _files(folder: Path, program: str | None, params: str | None) -> PaddleFiles:
    if program is None:
        return paddle_files(folder)
    own = None if params is None else folder / params
    for file in filter(None, (folder / program, own)):
        if not file.is_file():
            raise ModelError(f"{file} does not exist")
    return PaddleFiles(program=folder / program, params=own, separate=own is None)


def _copy(files: PaddleFiles, to: Path) -> None:
    """Copy the model's files under the original's names."""
    if files.separate:
        for each in files.program.parent.iterdir():
            if each.is_file() and "prototxt" not in each.name:
                shutil.copy(each, to / ("__model__" if each == files.program else each.name))
        return
    shutil.copy(files.program, to / ("model.json" if files.is_json else "model.pdmodel"))
    if files.params is not None:
        shutil.copy(files.params, to / _PARAMS)


def _encrypt(folder: Path) -> None:
    """Encrypt the two files of a folder as Paddle does; write the key to the working directory."""
    files = paddle_files(folder)
    if files.is_json or files.params is None:
        raise ModelError(
            "Paddle encrypts a program of Paddle 2 with all parameters in one file, and no other"
        )
    from paddle.base import core

    key = os.urandom(_KEY_BYTES)
    cipher: Any = core.CipherFactory.create_cipher("")
    for file, name in ((files.program, ENCRYPTED_PROGRAM), (files.params, ENCRYPTED_PARAMS)):
        cipher.encrypt_to_file(file.read_bytes(), key, str(folder / name))
        file.unlink()
    # Created with mode 0600, so that no other user can read the key at any time.
    with open(os.open(_KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as written:
        written.write(key)


def _variables(
    parameter: str, specs: Sequence[TensorSpec], aliases: str | None
) -> tuple[Variable, ...]:
    names = [spec.name for spec in specs]
    public = names if aliases is None else aliases.split(",")
    if len(public) != len(names):
        raise ValueError(f"{parameter} has {len(public)} names for {names}")
    return tuple(
        Variable(
            name=spec.name,
            alias=alias,
            is_lod=spec.is_lod,
            type=CODES.get(oip.datatype_of(spec), _UNKNOWN_TYPE),
            shape=(-1,) if spec.is_lod else tuple(size for size in spec.shape or () if size),
        )
        for spec, alias in zip(specs, public, strict=True)
    )


def _write(conf: ModelConf, folder: Path, name: str) -> None:
    text, stream = format_model_conf(conf)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name.replace(".prototxt", ".stream.prototxt")).write_bytes(stream)
