"""Files that are not UTF-8 are refused by a byte that occurs in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.json_lines import json_rows, reading


@pytest.mark.parametrize("before", ["", "{}\n" * 10_000])
@pytest.mark.parametrize("after", ["", "\n{}"])
def test_a_file_that_is_not_utf_8_is_refused(before: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(f'{before}{{"prompt": "caf\u00e9{after}'.encode("latin-1"))

    message = r"rows.jsonl cannot be read as UTF-8 text: byte 0xE9: "
    with pytest.raises(UserError, match=message), reading(path), path.open(encoding="utf-8") as file:
        list(json_rows(file, path))
