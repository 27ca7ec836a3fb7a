"""What the machine refuses where a file is written or read, as a sentence: a full disk, a folder that is read-only."""

from __future__ import annotations

import errno
import os
import re

_SPACE = "Free some, or point LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR to a larger disk"
_ACCESS = "Name folders that you may write to in LOOKAHEAD_CACHE, LOOKAHEAD_ENGINES or TMPDIR, or mend the permissions"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: "A file stands where a folder should be; move it, or name another folder",
    errno.EISDIR: "A folder stands where a file should be; move it, or name another file",
    errno.ENAMETOOLONG: "Use a shorter one",
    errno.ELOOP: "Mend the symbolic link",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.EIO: "The disk or its connection is faulty",
}


def refusal(error: Exception) -> str | None:
    """The sentence for an error of the machine's; None for others, a file that is missing among them: they may be bugs
    of ours."""
    number = error.errno if isinstance(error, OSError) else _number_in(error)
    if number not in _REMEDIES:
        return None
    names = [str(name) for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    where = f" ({', '.join(names)})" if names else ""
    return f"{os.strerror(number)}{where}. {_REMEDIES[number]}."


def _number_in(error: Exception) -> int | None:
    """Libraries written in Rust have errors of their own with the system's number in the text."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
