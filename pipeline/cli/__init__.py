"""The `lookahead` command.

Exit codes: 0 success, 1 an internal error (with its trace), 2 a user error (one message), 130 Ctrl-C, 141 a closed
stdout (SIGPIPE), 143 SIGTERM.
Errors are caught here and nowhere else in this package.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from traceback import walk_stack
from typing import NoReturn

from pipeline.config.threads import WAIT_POLICY
from pipeline.errors import UserError, error_number

_report_dropped = sys.unraisablehook
_SPACE = "Free some, or point LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR to a larger disk"
_ACCESS = "Name folders that you may write to in LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR, or fix the permissions"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EROFS: _ACCESS,
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


def leave_on_signals() -> None:
    """Make SIGTERM, and SIGHUP unless `nohup` ignores it, raise SystemExit, so that cleanup runs as after Ctrl-C."""

    def terminate(number: int, frame: object) -> NoReturn:
        raise Terminated(128 + number)

    terminals = [number for number in range(3) if os.isatty(number)]

    def hang_up(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a shell sends it again
        null = os.open(os.devnull, os.O_RDWR)
        for terminal in terminals:  # it is closed, and a failed message would end the cleanup
            os.dup2(null, terminal)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)
    sys.unraisablehook = _send_again


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again, because Python drops exceptions that its handler raises in a finalizer or callback."""
    if isinstance(dropped.exc_value, SystemExit | KeyboardInterrupt):
        number = signal.SIGTERM if isinstance(dropped.exc_value, SystemExit) else signal.SIGINT
        threading.Thread(target=_send, args=(number,)).start()
    else:
        _report_dropped(dropped)


def _send(number: int) -> None:
    """Send a signal to this process once `_send_again` has returned, because Python drops exceptions in it as well."""
    main = threading.main_thread().ident or 0
    while any(frame.f_code is _send_again.__code__ for frame, _ in walk_stack(sys._current_frames()[main])):
        time.sleep(0.01)
    os.kill(os.getpid(), number)


def refusal(error: Exception) -> str | None:
    """Return the message for an error of the operating system. None for other errors, including a missing file, which
    may be a bug of this program."""
    number = error_number(error)
    if number not in _REMEDIES:
        return None
    names = [str(name) for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    where = f" ({', '.join(names)})" if names else ""
    return f"{os.strerror(number)}{where}. {_REMEDIES[number]}."


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit the process with its code."""
    os.environ.setdefault(*WAIT_POLICY)
    leave_on_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):  # escapes what its encoding lacks, as stderr does
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from pipeline.cli.app import build_app

        build_app()(args=None if arguments is None else list(arguments), prog_name="lookahead")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (sentence := refusal(error)) is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
