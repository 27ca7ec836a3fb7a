"""Options that several research commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Largest draft tree that can be measured: the largest for which an engine can be built.
MOST_DRAFT_TOKENS = 2048
Outputs = Annotated[
    Path,
    typer.Option(
        "--outputs", help="Recorded outputs: JSON Lines of {prompt_ids, output_ids, task}, or a `bench --json` file."
    ),
]
