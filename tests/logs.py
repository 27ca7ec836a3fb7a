"""What a test logs."""

from __future__ import annotations

import logging


class Logs(logging.Handler):
    """records: of warnings and worse. lines: the same as text, with traces."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)
