"""Worker process: `python -m pipeline.dynamo.worker SPEC`, with SPEC a `WorkerSpec` as JSON."""

from __future__ import annotations

import sys

from dynamo.common.backend.run import run

from pipeline.dynamo.engine import TritonEngine


def main() -> None:
    run(TritonEngine, sys.argv[1:])


if __name__ == "__main__":
    main()
