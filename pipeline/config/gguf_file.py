"""Reads the settings and the list of tensors of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.loading import shown
from pipeline.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader


class GgufFile:
    """The settings and the tensors of a GGUF file. architecture: as llama.cpp names it; None if the file names none."""

    def __init__(self, path: Path, error: type[UserError]) -> None:
        """Raises `error` if the file is not a GGUF file, is incomplete or damaged, or contains a part of a model."""
        self._name, self._error = shown(path), error
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise error(f"{shown(path)} is not a GGUF file. Fetch it again.")
            size = path.stat().st_size
            self._reader = _opened(path)
            self.tensors = self._reader.tensors
            named, num_parts = self.value("general.architecture"), self.value("split.count")
        except OSError as cause:
            raise error(f"{shown(path)} cannot be read: {cause.strerror}.") from cause
        except (ValueError, IndexError, KeyError, OverflowError) as cause:  # errors of GGUFReader for a truncated file
            raise error(f"{shown(path)} is incomplete or damaged ({size} bytes). Fetch it again.") from cause
        if isinstance(num_parts, int) and num_parts > 1:
            raise error(
                f"{shown(path)} is one of {num_parts} parts of a model. Merge them with `llama-gguf-split --merge` of "
                "llama.cpp, and name the result."
            )
        self.architecture = named if isinstance(named, str) else None
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in self.tensors), default=0)
        if end > size:
            raise error(f"{shown(path)} is incomplete: it has {size} of {end} bytes. Fetch it again.")

    @property
    def num_entries(self) -> int:
        """Number of entries of all tensors."""
        return sum(int(tensor.n_elements) for tensor in self.tensors)

    def value(self, key: str) -> Any:
        """The value of a key; None if it is missing. Raises the file's class of errors for text that is not UTF-8."""
        field = self._reader.get_field(key)
        try:
            return None if field is None else field.contents()
        except UnicodeDecodeError as cause:
            raise self._error(f"{self._name} has a {key} that is not UTF-8. Fetch it again.") from cause

    def setting(self, name: str) -> Any:
        """A setting of the file's architecture; None if it is missing."""
        return self.value(f"{self.architecture}.{name}")


def _opened(path: Path) -> GGUFReader:
    """The library's reader. It makes an array for every number and text of the file, several for each token of the
    vocabulary. Slices of numpy's memory map, as the library makes them, would take four times as long."""
    import numpy as np
    from gguf import GGUFReader

    class Reader(GGUFReader):  # type: ignore[misc]  # the library has no types
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            array = np.frombuffer(self.data, dtype, int(count), int(offset))
            return array.view(array.dtype.newbyteorder(override_order or self.byte_order))

    return Reader(path)
