"""Snapshots of tries: restored equal, and refused if damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.arrays import bytes_for
from pipeline.decoding.trie.estimator import Estimator
from pipeline.decoding.trie.snapshot import load_trie, read_snapshot, save_trie
from pipeline.decoding.trie.text_trie import least_nodes
from pipeline.errors import UserError
from tests.kernel_examples import examples
from tests.unit.decoding.trie.integrity import check


@pytest.fixture(scope="module")
def trie() -> Trie:
    trie = Trie(6, 1 << 14)
    rng = np.random.default_rng(3)
    for name in ("", "tenant ü"):
        trie.insert(rng.integers(0, 5, 80).astype(np.int32), name)
    return trie


@pytest.fixture(scope="module")
def content(trie: Trie, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trie") / "a.trie"
    save_trie(trie, path)
    return path.read_bytes()


def test_the_format_has_a_number_that_only_another_format_changes(content: bytes):
    """Earlier programs refuse a file of another version, so all files would be lost."""
    assert int.from_bytes(content[8:12], "little") == 3


def test_a_restored_trie_is_the_one_saved_and_goes_on_like_it(trie: Trie, content: bytes, tmp_path: Path):
    path = tmp_path / "a.trie"
    path.write_bytes(content)
    again = load_trie(path)
    check(again)
    assert again.statistics == trie.statistics
    more = np.arange(20, dtype=np.int32) % 9
    trie.insert(more, "tenant ü")
    again.insert(more, "tenant ü")
    assert [(n, t.tolist()) for n, t in again.texts()] == [(n, t.tolist()) for n, t in trie.texts()]
    estimator, own = Estimator(6), Trie(6)
    for name in ("", "tenant ü", "nobody"):
        one, two = (estimator.grow(own, each, name, more[:5], 32, 6) for each in (trie, again))
        assert one.token_ids.tolist() == two.token_ids.tolist()
        assert one.probabilities.tolist() == two.probabilities.tolist()


@pytest.mark.parametrize("namespace", ["", "größer 日", "\x00", "half of a pair \ud800"])
def test_any_namespace_is_saved(namespace: str, tmp_path: Path):
    trie = Trie(4)
    trie.insert([1, 2, 3], namespace)
    save_trie(trie, tmp_path / "trie")
    assert load_trie(tmp_path / "trie").roots == trie.roots


def test_a_trie_that_fills_its_memory_is_restored(tmp_path: Path):
    trie = Trie(4, bytes_for(least_nodes(4)))
    trie.insert(np.random.default_rng(0).integers(0, 9, 3000).astype(np.int32))
    save_trie(trie, tmp_path / "a.trie")
    again = load_trie(tmp_path / "a.trie")
    check(again)
    (_, held), (_, restored) = *trie.texts(), *again.texts()
    # The beginning of the sequence was forgotten, and so was its header, which takes two slots again.
    assert restored.tolist() == held[-len(restored) :].tolist()
    assert len(held) - 3 <= len(restored) <= len(held)
    num_forgotten = again.statistics.num_forgotten
    assert trie.statistics.num_forgotten <= num_forgotten <= trie.statistics.num_forgotten + 3


def test_halved_counts_are_restored(tmp_path: Path):
    trie = Trie(3)
    trie.prune()
    for times in (3, 2):
        for _ in range(times):
            trie.insert([1, 2, 3])
        trie.prune()
    trie.insert([1, 2], "other")
    save_trie(trie, tmp_path / "a.trie")
    again = load_trie(tmp_path / "a.trie")
    check(again)
    for tokens, name, count in (([1, 2, 3], "", 1), ([2], "", 1), ([1, 2], "other", 1)):
        assert [each.count(np.asarray(tokens), name) for each in (trie, again)] == [count, count]
    assert [len(text) for _, text in read_snapshot(tmp_path / "a.trie").texts()] == [3, 3, 3, 3, 3, 2]
    mark = np.asarray([-(2**31 - 1), -1], "<i4").tobytes()  # as in files of earlier programs
    assert (tmp_path / "a.trie").read_bytes().count(mark) == 3


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_changed_byte_is_noticed(content: bytes, tmp_path: Path, data: st.DataObject):
    place = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    path = tmp_path / "a.trie"
    path.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
    with pytest.raises(UserError, match=r"damaged|not a trie snapshot"):
        load_trie(path)


@pytest.mark.parametrize("length", [0, 5, 47, 60, -1, -40])
def test_a_file_cut_short_is_refused(content: bytes, tmp_path: Path, length: int):
    path = tmp_path / "a.trie"
    path.write_bytes(content[:length])
    with pytest.raises(UserError):
        load_trie(path)


def test_a_foreign_file_a_missing_one_and_another_version_have_different_errors(content: bytes, tmp_path: Path):
    path = tmp_path / "a.trie"
    with pytest.raises(UserError, match="cannot be read"):
        load_trie(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UserError, match="not a trie snapshot"):
        load_trie(path)
    for version in (2, 99):
        path.write_bytes(signed(content[:8] + version.to_bytes(4, "little") + content[12:-32]))
        with pytest.raises(UserError, match=f"has format version {version}.*again with `lookahead trie build`"):
            load_trie(path)


def signed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def with_header(content: bytes, **changes: object) -> bytes:
    """The snapshot with other values in its header, and a checksum that fits."""
    end = 16 + int.from_bytes(content[12:16], "little")
    header = json.dumps({**json.loads(content[16:end]), **changes}).encode()
    return signed(content[:12] + len(header).to_bytes(4, "little") + header + content[end:-32])


@pytest.mark.parametrize(
    "changes",
    [
        {"branch_length": 0},
        {"branch_length": 2.5},
        {"branch_length": 10**6},
        {"max_bytes": 1},
        {"max_bytes": "many"},
        {"num_forgotten": -1},
        {"num_forgotten": 1 << 62},
        {"num_forgotten": True},
        {"num_forgotten": None},
        {"namespaces": {"": []}},
        {"namespaces": None},
    ],
)
def test_a_header_that_does_not_fit_is_refused(content: bytes, tmp_path: Path, changes: dict[str, object]):
    path = tmp_path / "a.trie"
    path.write_bytes(with_header(content))
    check(load_trie(path))
    path.write_bytes(with_header(content, **changes))
    with pytest.raises(UserError, match=r"has an unexpected content|has impossible limits"):
        load_trie(path)


@pytest.mark.parametrize("header", [b"[]", b"{", b"", b"[" * 100_000, b"\xff\xff"])
def test_a_header_that_is_none_is_refused(content: bytes, tmp_path: Path, header: bytes):
    path = tmp_path / "a.trie"
    path.write_bytes(signed(content[:12] + len(header).to_bytes(4, "little") + header + content[100:-32]))
    with pytest.raises(UserError, match="has an unexpected content"):
        load_trie(path)


def restored(path: Path, content: bytes) -> Trie | None:
    """The trie of a file, None if it is refused."""
    path.write_bytes(content)
    try:
        return load_trie(path)
    except UserError:
        return None


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_loaded_is_whole_whatever_numbers_were_changed(content: bytes, tmp_path: Path, data: st.DataObject):
    place = data.draw(st.integers(16 + int.from_bytes(content[12:16], "little"), len(content) - 36))
    value = data.draw(
        st.one_of(st.binary(min_size=4, max_size=4), st.sampled_from([b"\xff" * 4, bytes(4), b"\1\0\0\0"]))
    )
    again = restored(tmp_path / "a.trie", signed(content[:place] + value + content[place + 4 : -32]))
    if again is None:
        return
    check(again)
    own, estimator = Trie(again.branch_length), Estimator(again.branch_length)
    for name in list(again.roots):
        estimator.grow(own, again, name, np.asarray([1, 2, 3], np.int32), 32, 6)
        again.insert(np.arange(100, dtype=np.int32) % 7, name)
    check(again)


def test_a_failed_write_leaves_the_old_file_and_no_litter(trie: Trie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.trie"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.files.os.fsync", fail)
    with pytest.raises(UserError, match="No space left"):
        save_trie(trie, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
