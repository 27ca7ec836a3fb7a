"""Atomic writes of files: failures, killed writers, locks, and modes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from pipeline.bench.report.results import require_writable
from pipeline.files import log_tail, partial_path, write_atomically


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    write_atomically(path, [b"a", b"", b"bc"])
    assert path.read_bytes() == b"abc"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, pieces())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", "new")


def test_an_error_of_a_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/file'"):
        write_atomically(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    """As root, a rename would replace a device such as /dev/null for every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    require_writable(pipe)
    write_atomically(pipe, "new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    """As /dev/stdout is a link, to the file that a shell redirects output to."""
    (tmp_path / "folder").mkdir()
    link, file = tmp_path / "link", tmp_path / "folder" / "file"
    link.symlink_to(file)
    for content in ("first", "second"):
        require_writable(link)
        write_atomically(link, content)
        assert link.is_symlink()
        assert file.read_text() == content
    assert list((tmp_path / "folder").iterdir()) == [file]


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_a_folder(path: str) -> None:
    with pytest.raises(IsADirectoryError):
        write_atomically(Path(path), "new")


def stopped_writer(path: Path) -> int:
    """A process that has begun to write a file and is stopped in the middle of it."""

    def pieces() -> Iterator[bytes]:
        yield b"new" * 10_000
        os.kill(os.getpid(), signal.SIGSTOP)

    if (child := os.fork()) == 0:
        write_and_end(path, pieces())
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    return child


def write_and_end(path: Path, pieces: Iterator[bytes]) -> NoReturn:
    try:
        write_atomically(path, pieces)
    finally:
        os._exit(0)


def test_what_a_killed_writer_left_goes_with_the_next_write_and_a_running_one_is_let_be(tmp_path: Path) -> None:
    path, other = tmp_path / "file[1]", tmp_path / "other"
    killed, running = stopped_writer(path), stopped_writer(path)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    (tmp_path / ".other.0.partial").write_text("of another file")
    assert len(list(tmp_path.iterdir())) == 3

    write_atomically(path, "mine")

    assert path.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3  # without the one of the killed writer
    os.kill(running, signal.SIGCONT)
    assert os.waitpid(running, 0)[1] == 0
    assert path.read_bytes() == b"new" * 10_000
    write_atomically(other, "text")
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_writer_that_was_killed_before_it_wrote_anything_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    partial_path(path).touch()
    write_atomically(path, "text")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    lock, removed = fcntl.flock, []

    def late(file: BinaryIO, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomically(path, "text")
    assert removed
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "text"


def test_the_file_has_the_mode_that_the_user_s_mask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_log_of_a_removed_folder_has_no_end(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "gone" / "log") == ""


def test_a_path_is_read_where_python_takes_paths_for_ascii(tmp_path: Path) -> None:
    """As in Triton's backend, which could not open the snapshot of a trie."""
    path = tmp_path / "Übersetzung.trie"
    path.write_bytes(b"content")
    code = "import sys; from pipeline.files import read_location; print(sys.getfilesystemencoding())"
    code += f"; print(read_location({str(path)!a}).decode())"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["ascii", "content"], done.stderr
