"""A repository in a folder: versions that are fetched, and those that are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from penstock.errors import ContentRefused, EmptyListing, StoreError, VersionUnfinished
from penstock.repository.manifest import (
    DONE,
    MANIFEST,
    SIGNATURE,
    Entry,
    Manifest,
    fingerprint,
    format_manifest,
)
from penstock.store.cache import Cache, Fetched
from penstock.store.signing import PublicKeys, sign
from penstock.store.source import Source

FILES = {"model.onnx": b"model", "data/w.bin": b"weights"}


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def manifest_of(files: Mapping[str, bytes], model: str = "m", version: str = "1") -> bytes:
    entries = tuple(
        Entry(path=path, size=len(data), sha256=sha256(data).hexdigest())
        for path, data in files.items()
    )
    return format_manifest(Manifest(model=model, version=version, files=entries))


def fetch(
    source: Source,
    cache: Cache,
    folder: str = "m/1",
    progress: Callable[[int, int], None] | None = None,
) -> Fetched:
    model, _, version = folder.partition("/")
    files = [each for each in source.listing().files if each.path.startswith(folder + "/")]
    return source.fetch(model, version, files, cache, folder=folder, progress=progress)


def files_of(fetched: Fetched) -> dict[str, bytes]:
    return {
        each.relative_to(fetched.path).as_posix(): each.read_bytes()
        for each in fetched.path.rglob("*")
        if each.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "models", {f"m/1/{path}": data for path, data in FILES.items()})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def source(root: Path) -> Source:
    return Source(root, settle=0)


def test_a_version_is_copied(source: Source, cache: Cache, root: Path) -> None:
    fetched = fetch(source, cache)
    (root / "m/1/model.onnx").write_bytes(b"other")  # what serves stays as it was
    assert files_of(fetched) == FILES


def test_the_progress_is_told_in_bytes(source: Source, cache: Cache) -> None:
    told: list[tuple[int, int]] = []
    fetch(source, cache, progress=lambda done, total: told.append((done, total)))
    assert told == [(7, 12), (12, 12)]


def test_a_repository_is_a_path_or_a_file_url(root: Path, cache: Cache) -> None:
    for place in (root, str(root), f"file://{root}"):
        assert files_of(fetch(Source(place, settle=0), cache)) == FILES


def test_what_progress_raises_ends_the_transfer_and_leaves_nothing(
    source: Source, cache: Cache
) -> None:
    def stop(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fetch(source, cache, progress=stop)
    assert [*(cache.folder / "tmp").iterdir()] == []
    assert [*(cache.folder / "versions").iterdir()] == []
    assert files_of(fetch(source, cache)) == FILES


def test_a_repository_that_has_files_and_then_none_is_suspicious(
    source: Source, root: Path
) -> None:
    assert source.listing().files
    for each in (root / "m/1").rglob("*"):
        if each.is_file():
            each.unlink()
    for _ in range(2):
        with pytest.raises(EmptyListing, match="lists no files, though it had some"):
            source.listing()
    write(root, {"m/1/model.onnx": b"model"})
    assert len(source.listing().files) == 1


def test_a_repository_may_begin_empty(tmp_path: Path) -> None:
    assert Source(tmp_path).listing().files == ()


def test_a_version_may_be_one_file_or_a_folder_with_a_configuration(
    tmp_path: Path, cache: Cache
) -> None:
    """As layouts without folders of versions are read."""
    write(tmp_path / "models", {"n.onnx": b"n", "p/__model__": b"p", "p/config.pbtxt": b"c"})
    source = Source(tmp_path / "models", settle=0)
    files = {each.path: each for each in source.listing().files}
    single = source.fetch("n", "1", [files["n.onnx"]], cache, folder="n.onnx")
    assert files_of(single) == {"n.onnx": b"n"}
    whole = source.fetch("p", "1", [files["p/__model__"]], cache, folder="p")
    assert files_of(whole) == {"__model__": b"p"}


# Versions without a manifest


@pytest.mark.parametrize("change", [b"model2", b"ledom", None])
def test_a_version_that_changes_while_it_is_fetched_is_unfinished(
    source: Source, cache: Cache, root: Path, change: bytes | None
) -> None:
    def interfere(done: int, total: int) -> None:
        if change is None:
            (root / "m/1/data/w.bin").unlink(missing_ok=True)
        else:
            (root / "m/1/data/w.bin").write_bytes(change)

    with pytest.raises(VersionUnfinished, match=r"data/w\.bin has"):
        fetch(source, cache, progress=interfere)
    assert [*(cache.folder / "versions").iterdir()] == []


def test_a_file_that_comes_while_a_version_is_fetched_makes_it_unfinished(
    source: Source, cache: Cache, root: Path
) -> None:
    with pytest.raises(VersionUnfinished, match=r"m/1 is not complete: m/1/late\.bin is new"):
        fetch(source, cache, progress=lambda *_: write(root, {"m/1/late.bin": b"1"}) and None)


def test_a_version_is_scanned_again_after_the_time_that_it_must_be_at_rest(
    root: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def copied_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            write(root, {"m/1/data/w2.bin": b"more"})

    source = Source(root, settle=5.0)
    monkeypatch.setattr("penstock.store.source.time.sleep", copied_meanwhile)
    with pytest.raises(VersionUnfinished, match=r"w2\.bin is new"):
        fetch(source, cache)
    assert len(waited) == 1
    assert 4.0 < waited[0] <= 5.0
    assert len(files_of(fetch(source, cache))) == 3


@pytest.mark.parametrize("name", ["w.bin.part", ".model.onnx.Ab3dE9", "data/x.tmp"])
def test_a_file_that_is_being_written_makes_a_version_unfinished(
    source: Source, cache: Cache, root: Path, name: str
) -> None:
    write(root / "m/1", {name: b"half"})
    with pytest.raises(VersionUnfinished, match="is being written"):
        fetch(source, cache)
    (root / "m/1" / name).unlink()
    assert files_of(fetch(source, cache)) == FILES


def test_a_series_of_files_must_be_complete(source: Source, cache: Cache, root: Path) -> None:
    write(root / "m/1", {"w-00001-of-00002.bin": b"1"})
    with pytest.raises(VersionUnfinished, match=r"has 1 of 2 files w-\*-of-00002.bin"):
        fetch(source, cache)


def test_a_version_without_files_is_unfinished(source: Source, cache: Cache) -> None:
    with pytest.raises(VersionUnfinished, match="it has no files"):
        source.fetch("m", "2", [], cache, folder="m/2")


def test_a_done_file_saves_the_wait(root: Path, cache: Cache) -> None:
    write(root / "m/1", {DONE: b""})
    fetched = fetch(Source(root, settle=10**6), cache)
    assert files_of(fetched) == FILES


def test_a_done_file_of_earlier_does_not(
    root: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "m/1", {DONE: b""})
    os.utime(root / "m/1" / DONE, (1, 1))
    waited: list[float] = []
    monkeypatch.setattr("penstock.store.source.time.sleep", waited.append)
    fetch(Source(root, settle=10**6), cache)
    assert waited


def test_a_link_that_leaves_the_repository_refuses_the_version(
    source: Source, cache: Cache, root: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"secret": b"1"})
    (root / "m/1/more").symlink_to(tmp_path / "secret")
    with pytest.raises(ContentRefused, match="m/1/more is a link that leaves") as refused:
        fetch(source, cache)
    assert refused.value.fingerprint == fingerprint(source.listing().files)


# Versions with a manifest


def test_a_manifest_says_which_files_a_version_has(root: Path, cache: Cache) -> None:
    write(root / "m/1", {MANIFEST: manifest_of(FILES), "notes.txt": b"not listed"})
    fetched = fetch(Source(root, settle=10**6), cache)  # and saves the wait
    assert files_of(fetched) == FILES
    assert fetched.digest == Manifest.digest.fget(  # type: ignore[attr-defined]
        Manifest(
            model="",
            version="",
            files=tuple(
                Entry(path=path, size=0, sha256=sha256(data).hexdigest())
                for path, data in FILES.items()
            ),
        )
    )


def test_only_what_changed_is_transferred(source: Source, cache: Cache, root: Path) -> None:
    write(root / "m/1", {MANIFEST: manifest_of(FILES)})
    second = {**FILES, "model.onnx": b"new model"}
    write(root / "m/2", {**second, MANIFEST: manifest_of(second, version="2")})
    one = fetch(source, cache)
    two = fetch(source, cache, "m/2")
    assert (one.transferred, two.transferred) == (12, 9)
    assert os.path.samefile(one.path / "data/w.bin", two.path / "data/w.bin")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"model.onnx": b"mode"}, r"model\.onnx has 4 bytes of 5"),
        ({"model.onnx": b"models"}, r"model\.onnx has 6 bytes of 5"),
        ({"model.onnx": None}, r"model\.onnx is missing"),
    ],
)
def test_a_version_that_lacks_what_its_manifest_lists_is_unfinished(
    source: Source, cache: Cache, root: Path, found: dict[str, bytes | None], reason: str
) -> None:
    write(root / "m/1", {MANIFEST: manifest_of(FILES)})
    for path, data in found.items():
        if data is None:
            (root / "m/1" / path).unlink()
        else:
            write(root / "m/1", {path: data})
    with pytest.raises(VersionUnfinished, match=reason):
        fetch(source, cache)


def test_a_wrong_digest_is_refused_and_named(source: Source, cache: Cache, root: Path) -> None:
    write(root / "m/1", {MANIFEST: manifest_of(FILES), "model.onnx": b"modem"})
    with pytest.raises(ContentRefused, match=r"model\.onnx has the sha256 [0-9a-f]{64}, not"):
        fetch(source, cache)
    assert [*(cache.folder / "versions").iterdir()] == []


def test_a_version_that_is_overwritten_while_it_is_fetched_is_not_barred(
    source: Source, cache: Cache, root: Path
) -> None:
    write(root / "m/1", {MANIFEST: manifest_of(FILES)})
    with pytest.raises(VersionUnfinished, match=r"model\.onnx has changed"):
        fetch(
            source,
            cache,
            progress=lambda *_: write(root / "m/1", {"model.onnx": b"modem"}) and None,
        )


def test_a_manifest_that_is_none_is_refused(source: Source, cache: Cache, root: Path) -> None:
    write(root / "m/1", {MANIFEST: b"{"})
    with pytest.raises(ContentRefused, match=f"{MANIFEST} is no JSON"):
        fetch(source, cache)


def test_a_manifest_that_leaves_the_folder_is_refused(
    source: Source, cache: Cache, root: Path
) -> None:
    listed = json.loads(manifest_of(FILES))
    listed["files"][0]["path"] = "../../../etc/passwd"
    write(root / "m/1", {MANIFEST: json.dumps(listed).encode()})
    with pytest.raises(ContentRefused, match=r"lists '\.\./\.\./\.\./etc/passwd', which has \.\."):
        fetch(source, cache)


# Signatures


@pytest.fixture
def key(tmp_path: Path) -> ed25519.Ed25519PrivateKey:
    private = ed25519.Ed25519PrivateKey.generate()
    write_keys(tmp_path, private)
    return private


def write_keys(tmp_path: Path, *private: ed25519.Ed25519PrivateKey) -> None:
    pem = private[0].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    public = (each.public_key() for each in private)
    (tmp_path / "public.pem").write_bytes(
        b"".join(
            each.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for each in public
        )
    )


def signed(root: Path, tmp_path: Path) -> Source:
    return Source(root, keys=PublicKeys.read(tmp_path / "public.pem"), settle=0)


@pytest.mark.parametrize("form", ["base64", "raw"])
def test_a_signed_version_is_fetched(
    root: Path, tmp_path: Path, cache: Cache, key: ed25519.Ed25519PrivateKey, form: str
) -> None:
    data = manifest_of(FILES)
    made = key.sign(data) if form == "raw" else sign(data, tmp_path / "key.pem")
    write(root / "m/1", {MANIFEST: data, SIGNATURE: made})
    assert files_of(fetch(signed(root, tmp_path), cache)) == FILES


def test_one_of_several_keys_is_enough(
    root: Path, tmp_path: Path, cache: Cache, key: ed25519.Ed25519PrivateKey
) -> None:
    write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate(), key)
    data = manifest_of(FILES)
    write(root / "m/1", {MANIFEST: data, SIGNATURE: key.sign(data)})
    assert files_of(fetch(signed(root, tmp_path), cache)) == FILES


def test_what_is_not_signed_as_it_must_be_is_refused(
    root: Path, tmp_path: Path, cache: Cache, key: ed25519.Ed25519PrivateKey
) -> None:
    source = signed(root, tmp_path)
    data = manifest_of(FILES)
    stranger = ed25519.Ed25519PrivateKey.generate()
    for files, reason in (
        ({}, f"it has no {MANIFEST}, which must be signed"),
        ({MANIFEST: data}, f"it has no {SIGNATURE}, and a key is configured"),
        ({SIGNATURE: b""}, "is no signature"),
        ({SIGNATURE: b"!" * 88}, "is no signature"),
        ({SIGNATURE: b"0" * 64}, "is of none of the configured keys"),
        ({SIGNATURE: stranger.sign(data)}, "is of none of the configured keys"),
        ({SIGNATURE: b"0" * 5000}, "has more than 1,024 bytes"),
    ):
        write(root / "m/1", files)
        with pytest.raises(ContentRefused, match=reason):
            fetch(source, cache)


def test_the_signature_of_another_version_is_refused(
    root: Path, tmp_path: Path, cache: Cache, key: ed25519.Ed25519PrivateKey
) -> None:
    """Else an old version with a known fault could be put in a new one's place."""
    data = manifest_of(FILES)
    write(root / "m/2", {**FILES, MANIFEST: data, SIGNATURE: key.sign(data)})
    with pytest.raises(ContentRefused, match="the signed manifest is of version '1' of 'm'"):
        fetch(signed(root, tmp_path), cache, "m/2")
    assert files_of(fetch(Source(root, settle=0), cache, "m/2")) == FILES


def test_a_file_without_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "ec").write_bytes(
        other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "broken").write_bytes(
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    )
    for name, reason in (
        ("none", "it has no public key in PEM"),
        ("ec", "a key is not of ed25519"),
        ("broken", "no public key can be read"),
        ("gone", "No such file"),
    ):
        with pytest.raises(StoreError, match=f"{name}: .*{reason}"):
            PublicKeys.read(tmp_path / name)
        with pytest.raises(StoreError, match=name):
            sign(b"", tmp_path / name)


@pytest.mark.parametrize("broken", [False, True])
def test_the_folder_of_one_model_is_a_repository_of_it(
    tmp_path: Path, cache: Cache, *, broken: bool
) -> None:
    write(tmp_path / "rec" / "1", {**FILES, MANIFEST: manifest_of(FILES, model="rec")})
    (tmp_path / "other").mkdir()
    source = Source(tmp_path / "rec", within="rec")
    paths = {each.path for each in source.listing().files}
    assert paths == {f"rec/1/{name}" for name in (*FILES, MANIFEST)}
    assert source.url == str(tmp_path / "rec")
    if broken:
        (tmp_path / "rec" / "1" / "model.onnx").write_bytes(b"madel")
        with pytest.raises(ContentRefused, match=r"rec/1: .*has the sha256"):
            fetch(source, cache, "rec/1")
    else:
        assert files_of(fetch(source, cache, "rec/1")) == FILES
