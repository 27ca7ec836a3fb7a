"""The algorithms: draft trees, draft sources, acceptance, sampling, the decode loop. No server, no model."""

import hashlib as _hashlib
import os as _os
from pathlib import Path as _Path

from pipeline.files import cache_folder as _cache_folder


def _keep_machine_code_by_source() -> None:
    """Tell numba where to keep machine code: in a folder per state of this package's sources.

    numba itself looks at the file of each function only; a constant or helper changed in another file would leave stale
    code in use. Read when numba is imported, hence here, before any module that does."""
    sources = sorted(_Path(__file__).parent.rglob("*.py"))
    digest = _hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    cache = _os.path.expanduser(_cache_folder(_os.environ))
    _os.environ.setdefault("NUMBA_CACHE_DIR", _os.path.join(cache, "numba", digest))


_keep_machine_code_by_source()
