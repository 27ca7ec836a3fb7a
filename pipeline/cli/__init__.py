"""The `lookahead` command.

Exit codes: 0 success, 1 an internal error (with its trace), 2 a user error (one message), 129 SIGHUP, 130 Ctrl-C, 141 a
closed stdout (SIGPIPE), 143 SIGTERM.
Errors are caught here and nowhere else in this package.
"""

from __future__ import annotations

import _thread
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, NoReturn, TypeVar

from pipeline.config.threads import WAIT_POLICY
from pipeline.errors import UserError, error_number

_report_dropped = sys.unraisablehook
_SPACE = "Free some, name a file on another disk, or point LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR to one"
_FOLDERS = "Name folders that you may write to in LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR"
_ACCESS = "Fix the permissions, or name another file. " + _FOLDERS
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EROFS: _FOLDERS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: "A file is where a folder should be; move it, or name another folder",
    errno.EISDIR: "A folder is where a file should be; move it, or name another file",
    errno.ENAMETOOLONG: "Use a shorter one",
    errno.ELOOP: "Fix the symbolic link",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.EIO: "The disk or its connection is faulty",
}


class Terminated(SystemExit):
    """SIGTERM. A command stops what it has started, as after Ctrl-C."""


class _Arrival:
    """Attribute of the exception that a signal raises. Sends the signal again if the exception is dropped: Python drops
    those in finalizers, and extension modules drop some as well, such as those of numpy and pydantic."""

    is_over = False  # whether the command has ended
    dropped: ClassVar[list[int]] = []  # exit codes for the signals that are sent again

    def __init__(self, number: int, code: int) -> None:
        self.number = number
        self.code = code
        self.is_handled = False

    def __del__(self) -> None:
        if not (self.is_handled or self.is_over):
            self.dropped.append(self.code)
            _thread.start_new_thread(self._send, (self.number,))

    @classmethod
    def _send(cls, number: int) -> None:
        time.sleep(0.02)  # until the main thread has left the finalizer, in which Python drops exceptions as well
        if not cls.is_over:
            os.kill(os.getpid(), number)


_Raised = TypeVar("_Raised", bound=BaseException)


def _noticed(error: _Raised, number: int, code: int) -> _Raised:
    """The exception to raise for a signal. number: of the signal to send if the exception is dropped. code: exit code
    of the command."""
    error.__dict__["arrival"] = _Arrival(number, code)
    return error


def continue_after(error: BaseException) -> None:
    """Let the command continue although a signal has raised this exception."""
    if arrival := error.__dict__.get("arrival"):
        arrival.is_handled = True
        _Arrival.dropped.clear()


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Make SIGTERM, and SIGHUP unless `nohup` ignores it, raise SystemExit in the block, so that cleanup runs as after
    Ctrl-C. If such an exception or the KeyboardInterrupt of Ctrl-C is dropped, the signal is sent again."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise _noticed(KeyboardInterrupt(), number, 128 + number)

    def terminate(number: int, frame: object) -> NoReturn:
        code = _Arrival.dropped[0] if _Arrival.dropped else 128 + number
        raise _noticed(Terminated(code), number, code)

    terminals = [number for number in range(3) if os.isatty(number)]

    def hang_up(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a shell sends it again
        null = os.open(os.devnull, os.O_RDWR)
        for terminal in terminals:  # it is closed, and a failed message would end the cleanup
            os.dup2(null, terminal)
        raise _noticed(SystemExit(128 + number), signal.SIGTERM, 128 + number)

    _Arrival.is_over = False
    _Arrival.dropped.clear()
    sys.unraisablehook = _report_unless_signal
    for known, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, terminate), (signal.SIGHUP, hang_up)):
        if signal.getsignal(known) is not signal.SIG_IGN:
            signal.signal(known, handler)
    try:
        yield
    finally:
        _Arrival.is_over = True


def _report_unless_signal(dropped: sys.UnraisableHookArgs) -> None:
    if not hasattr(dropped.exc_value, "arrival"):
        _report_dropped(dropped)


def _cause_of(error: BaseException | None) -> int | None:
    """The exit code for the signal that has caused an error, None if there is none. Python and libraries replace some
    exceptions."""
    if _Arrival.dropped:
        return _Arrival.dropped[0]
    while error is not None and "arrival" not in error.__dict__:
        error = error.__cause__ or error.__context__
    return None if error is None else int(error.__dict__["arrival"].code)


def refusal(error: Exception) -> str | None:
    """Return the message for an error of the operating system. None for other errors, including a missing file, which
    may be a bug of this program."""
    number = error_number(error)
    if number not in _REMEDIES:
        return None
    names = [str(name) for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    where = f" ({', '.join(names)})" if names else ""
    return f"{os.strerror(number)}{where}. {_REMEDIES[number]}."


def _open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams. Otherwise a file of the command would get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the smallest free number
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _refuse(sentence: str) -> NoReturn:
    with suppress(OSError):  # a log on a full disk; the exit code remains
        print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit the process with its code."""
    os.environ.setdefault(*WAIT_POLICY)
    _open_standard_streams()
    try:
        with leave_on_signals():
            if isinstance(sys.stdout, io.TextIOWrapper):  # escapes what its encoding lacks, as stderr does
                sys.stdout.reconfigure(errors="backslashreplace")
            from pipeline.cli.app import build_app

            build_app()(args=None if arguments is None else list(arguments), prog_name="lookahead")
    except UserError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (code := _cause_of(error)) is not None:
            sys.exit(code)
        if (sentence := refusal(error)) is None:
            raise
        _refuse(sentence)
    sys.exit(0)
