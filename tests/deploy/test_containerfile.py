"""The Containerfile of the model server, read as text."""

from __future__ import annotations

import tomllib

import pytest

from tests.documents import ROOT
from tests.kit.containerfile import environment, read

CONTAINERFILE = ROOT / "deploy/Containerfile"
IMAGE = ROOT / "requirements/image.txt"


def test_the_image_runs_a_command_as_a_user_without_rights_and_without_a_shell() -> None:
    build, final = read(CONTAINERFILE.read_text())
    assert build.base == final.base == "docker.io/library/python:3.11-slim"
    assert final.only("USER").text == "10001:10001"
    assert final.only("ENTRYPOINT").words == ["penstock"]
    assert final.only("CMD").words == ["serve", "--model-repository", "/models"]
    keys = environment(final.only("ENV").text, {"PATH": "/bin"})
    assert keys["PATH"] == "/opt/venv/bin:/bin"
    assert (keys["PENSTOCK_HOST"], keys["PENSTOCK_HTTP_PORT"]) == ("0.0.0.0", "8080")
    assert final.only("EXPOSE").text == "8080"
    # After the packages nothing runs, so that nothing of it is in a layer of its own.
    assert [each.name for each in final.instructions][-4:] == [
        "USER",
        "EXPOSE",
        "ENTRYPOINT",
        "CMD",
    ]


def test_what_is_copied_is_not_ignored_and_the_rest_of_the_checkout_is() -> None:
    (build, _) = read(CONTAINERFILE.read_text())
    copied = [each.text.split()[0] for each in build.instructions if each.name == "COPY"]
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1:] == ["*", *(f"!{each}" for each in copied)]


def locked(text: str) -> dict[str, str]:
    lines = [line.split(" ")[0] for line in text.splitlines() if "==" in line]
    return dict(line.split("==") for line in lines)


def test_the_locked_packages_are_those_that_the_tests_use_and_have_hashes() -> None:
    image = locked(IMAGE.read_text())
    tested = locked((ROOT / "requirements/dev.txt").read_text())
    assert image.items() <= tested.items()
    for part in IMAGE.read_text().replace("\\\n", "").splitlines():
        assert "--hash=sha256:" in part, part


def test_the_locked_packages_have_what_the_image_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["onnx"], *extras["images"], *extras["repository"]]
    names = {each.split(";")[0].split(">")[0].split("[")[0].replace(".", "-") for each in wanted}
    assert names | {"s3fs"} <= locked(IMAGE.read_text()).keys()


@pytest.mark.parametrize(
    "text",
    ["RUN true", "FROM a\nADD x y", "FROM a\nCOPY --link x y", "FROM a\nRUN true \\", ""],
    ids=["no base", "unknown instruction", "unknown flag", "unfinished", "empty"],
)
def test_a_containerfile_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line|no FROM"):
        read(text)
