"""A bundle: every changed byte is noticed, and it is replaced in one step."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_train import SMALL
from worlds import checkerboard

from rootbeam.core import bundle as bundles
from rootbeam.core import inplace
from rootbeam.core.bundle import MANIFEST, check_place, open_bundle, read_manifest, write_bundle
from rootbeam.core.errors import BundleError
from rootbeam.recommender import Recommender, load

FILES = {
    *("manifest.json", "weights.safetensors", "histories.safetensors", "popularity.safetensors"),
    *("ids.parquet", "items.parquet", "MODEL_CARD.md"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "model"
    Recommender(SMALL).fit(checkerboard(users=12), model="neighbours").save(path)
    return path


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def refused(path) -> str:
    with pytest.raises(BundleError) as raised:
        load(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def edit_manifest(path, change, *, rehash: bool = False):
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    if rehash:
        del manifest["sha256"]
        manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def number(path) -> int:
    return open_bundle(path, lambda manifest: int((path / "a").read_bytes()) - manifest["number"])


def write_number(path, n: int) -> None:
    """Two files that must agree with each other and with the manifest."""
    write_bundle(path, {"a": str(n).encode(), "b": str(n).encode()}, {"number": n})


# -- damage ------------------------------------------------------------------------


def test_a_bundle_holds_what_the_design_names(whole):
    assert {file.name for file in whole.iterdir()} == FILES
    manifest = read_manifest(whole)
    assert set(manifest["files"]) == FILES - {MANIFEST}
    for name, sha in manifest["files"].items():
        assert hashlib.sha256((whole / name).read_bytes()).hexdigest() == sha
    assert {"format", "version", "config", "items", "users", "ladder", "tree", "metrics"} <= manifest.keys()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FILES)), place=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 255))
def test_any_changed_or_removed_byte_is_refused_by_name(whole, tmp_path_factory, name, place, flip):
    """flip 0 removes the byte, others change it."""
    path = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(whole, path)
    content = bytearray((path / name).read_bytes())
    at = int(place * len(content))
    content[at : at + 1] = bytes([content[at] ^ flip]) if flip else b""
    (path / name).write_bytes(content)
    message = refused(path)
    assert (name in message) or ("has format" in message and str(path) in message)


def test_every_byte_of_a_manifest_counts(tmp_path):
    """All of them, on a small one: blanks and spellings of the same number too."""
    write_number(tmp_path / "x", 10**20)
    good = (tmp_path / "x" / MANIFEST).read_bytes()
    for at in range(len(good)):
        for bad in (good[:at] + good[at + 1 :], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            (tmp_path / "x" / MANIFEST).write_bytes(bad)
            with pytest.raises(BundleError):
                read_manifest(tmp_path / "x")


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut in half", "a folder instead", "a byte more"])
def test_damage_is_refused_by_name(copy, name, damage):
    file = copy / name
    content = file.read_bytes()
    file.unlink()
    if damage == "a folder instead":
        file.mkdir()
    elif damage != "removed":
        changed = {
            "emptied": b"",
            "cut in half": content[: len(content) // 2],
            "a byte more": content + b"\n",
        }
        file.write_bytes(changed[damage])
    assert name in refused(copy)


def test_a_newer_format_is_refused_with_what_to_do(copy):
    edit_manifest(copy, lambda manifest: manifest.update(format=bundles.FORMAT + 1), rehash=True)
    assert refused(copy).endswith("update rootbeam")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(seed=m["seed"] + 1),
        lambda m: m["files"].pop("items.parquet"),
        lambda m: m.pop("sha256"),
        lambda m: m.update(extra=1),
        lambda m: m["blend"].update(a=m["blend"]["a"] * 2),
    ],
)
def test_an_edited_manifest_is_refused(copy, change):
    edit_manifest(copy, change)
    assert "was edited" in refused(copy)


@pytest.mark.parametrize("key", ["model", "blend", "config", "popularity", "integer_ids", "curves"])
def test_a_manifest_that_lacks_something_is_refused_even_with_the_right_hash(copy, key):
    edit_manifest(copy, lambda manifest: manifest.pop(key), rehash=True)
    assert key in refused(copy)


def test_a_rung_of_the_future_is_refused(copy):
    edit_manifest(copy, lambda manifest: manifest.update(model="oracle"), rehash=True)
    with pytest.raises(BundleError, match="'oracle'; this version knows popularity"):
        load(copy).recommend(["u1"])


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{}", '{"format": "1"}', "{", "\x00", "NaN"])
def test_a_manifest_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    assert "is damaged" in refused(tmp_path)


def test_what_is_no_bundle_says_how_to_make_one(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        assert "is not a bundle" in refused(path)
        assert "rootbeam train EVENTS" in refused(path)


# -- replacing ---------------------------------------------------------------------


def test_a_reader_never_sees_half_of_a_replacement(tmp_path):
    path = tmp_path / "model"
    write_number(path, 0)
    trouble, reads, done = [], [], threading.Event()

    def read_on() -> None:
        while not done.is_set():
            try:
                reads.append(number(path))
            except Exception as error:
                trouble.append(error)

    reader = threading.Thread(target=read_on)
    reader.start()
    for n in range(1, 101):
        write_number(path, n)
    done.set()
    reader.join()
    assert not trouble
    assert len(reads) > 1
    assert set(reads) == {0}, "the file of one bundle was read under the manifest of another"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_model_can_be_loaded_in_a_loop_while_it_is_replaced(whole, tmp_path):
    path = tmp_path / "model"
    first, second = load(whole), load(whole)
    second.observe(checkerboard(users=3, seed=5))
    first.save(path)
    expected = {len(r.recommend(["u0", "u1"], exclude_seen=False)) for r in (first, second)}
    trouble, done = [], threading.Event()

    def read_on() -> None:
        while not done.is_set():
            try:
                assert len(load(path).recommend(["u0", "u1"], exclude_seen=False)) in expected
            except Exception as error:
                trouble.append(error)

    reader = threading.Thread(target=read_on)
    reader.start()
    for n in range(30):
        (first, second)[n % 2].save(path)
    done.set()
    reader.join()
    assert not trouble


def test_a_bundle_that_is_damaged_while_it_is_read_is_still_refused(tmp_path):
    path = tmp_path / "model"
    write_number(path, 1)

    def damage(manifest):
        raise BundleError("this file is bad")

    with pytest.raises(BundleError, match="this file is bad"):
        open_bundle(path, damage)


def test_a_bundle_replaced_without_end_is_given_up_on(tmp_path):
    path, numbers = tmp_path / "model", iter(range(1, 1000))
    write_number(path, 0)
    with pytest.raises(BundleError, match="replaced faster than it can be read"):
        open_bundle(path, lambda manifest: write_number(path, next(numbers)))


def test_it_works_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(inplace, "_exchange", lambda first, second: False)
    for n in (1, 2):
        write_number(tmp_path / "model", n)
    assert read_manifest(tmp_path / "model")["number"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_link_stays_a_link(tmp_path):
    write_number(tmp_path / "monday", 1)
    (tmp_path / "latest").symlink_to("monday")
    write_number(tmp_path / "latest", 2)
    assert (tmp_path / "latest").is_symlink()
    assert read_manifest(tmp_path / "monday")["number"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "monday"]


@pytest.mark.parametrize(
    "content",
    [{"notes.txt": "mine"}, {MANIFEST: '{"name": "a web page", "format": 1}'}, {MANIFEST: "no json"}],
)
def test_a_folder_that_is_not_a_bundle_is_never_overwritten(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BundleError, match="is not a bundle; give another place"):
        write_number(tmp_path, 1)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == content


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(BundleError, match="is not a bundle"):
        write_number(tmp_path / "x", 1)
    with pytest.raises(BundleError, match="lies below a file"):
        write_number(tmp_path / "x" / "y", 1)
    assert (tmp_path / "x").read_text() == "mine"


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        write_number(path, 1)
        assert number(path) == 0


def test_a_place_is_told_from_a_relative_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    assert check_place(Path(".")) == tmp_path.resolve()


@pytest.mark.parametrize("fails_at", range(3), ids=["first file", "second file", "manifest"])
def test_an_error_halfway_leaves_the_old_one(tmp_path, monkeypatch, fails_at):
    path, written, write = tmp_path / "model", [], bundles._write_synced
    write_number(path, 1)

    def full(file, content):
        if len(written) == fails_at:
            raise OSError(28, "No space left on device")
        written.append(file)
        write(file, content)

    monkeypatch.setattr(bundles, "_write_synced", full)
    with pytest.raises(OSError, match="No space"):
        write_number(path, 2)
    assert read_manifest(path)["number"] == 1
    assert number(path) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_writer_that_is_killed_leaves_the_old_one(tmp_path):
    path = tmp_path / "model"
    write_number(path, 1)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom rootbeam.core import bundle\n"
        "bundle.put_in_place = lambda new, path: os.kill(os.getpid(), 9)\n"
        "bundle.write_bundle(Path(sys.argv[1]), {'a': b'2', 'b': b'2'}, {'number': 2})\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -9
    assert number(path) == 0
    assert read_manifest(path)["number"] == 1
    write_number(path, 3)
    assert read_manifest(path)["number"] == 3
