"""Messages for errors of the operating system while a file is written or read, such as a full disk or a read-only
folder."""

from __future__ import annotations

import errno
import os

from pipeline.errors import error_number

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


def refusal(error: Exception) -> str | None:
    """Return the message for an error of the operating system. None for other errors, including a missing file, which
    may be a bug of this program."""
    number = error_number(error)
    if number not in _REMEDIES:
        return None
    names = [str(name) for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    where = f" ({', '.join(names)})" if names else ""
    return f"{os.strerror(number)}{where}. {_REMEDIES[number]}."
