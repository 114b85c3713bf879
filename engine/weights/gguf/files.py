"""GGUFFiles: a model's GGUF file, or all of them where it is split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.gguf.file import GGUFFile, GGUFTensor
from engine.weights.gguf.split import parts

_DOWNLOAD = "Download all parts of the model, into one folder."


class _Placed(NamedTuple):
    file: GGUFFile
    tensor: GGUFTensor


class GGUFFiles:
    """`metadata` is the first file's, the parts that follow have none of the model; `tensors` are those of all, in their order.

    Keys of the format: split.count parts, of which this one is number split.no from 0; split.tensors.count tensors in all.
    Raises ModelLoadError, naming the file, for a part that is missing, of another model, or not complete.
    """

    def __init__(self, path: Path) -> None:
        """path: the file, or any part."""
        opened = GGUFFile(path)
        count = self._number(opened, "split.count", 1)
        self.files = [opened] if count <= 1 else self._parts(opened, count)
        self.metadata = self.files[0].metadata
        self._placed: dict[str, _Placed] = {}
        for file in self.files:
            for name, tensor in file.tensors.items():
                if name in self._placed:
                    raise ModelLoadError(f"{file.path}: the tensor {name!r} is in {self._placed[name].file.path} too.", _DOWNLOAD)
                self._placed[name] = _Placed(file, tensor)
        self.tensors = {name: placed.tensor for name, placed in self._placed.items()}
        expected = self._number(self.files[0], "split.tensors.count", len(self.tensors))
        if count > 1 and len(self.tensors) != expected:
            raise ModelLoadError(
                f"{path}: the parts have {len(self.tensors)} tensors, but the first one says that there are {expected}.",
                _DOWNLOAD,
            )

    def data(self, name: str) -> Tensor:
        """As GGUFFile.data."""
        return self._placed[name].file.data(name)

    def samples(self) -> tuple[bytes, Iterable[tuple[str, Tensor]]]:
        """For a digest: the headers, and each tensor's name and bytes."""
        headers = b"".join(file.bytes[: file.header_bytes].numpy().tobytes() for file in self.files)
        return headers, ((name, file.bytes[t.offset : t.offset + t.n_bytes]) for name, (file, t) in self._placed.items())

    def _parts(self, opened: GGUFFile, count: int) -> list[GGUFFile]:
        paths = parts(opened.path)
        if len(paths) != count:
            raise ModelLoadError(
                f"{opened.path}: this is one of {count} parts of a model, but its name does not say so.",
                f"Name the parts NAME-00001-of-{count:05}.gguf and so on, as they were when they were made.",
            )
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelLoadError(
                f"{opened.path}: of the {count} parts of the model, {some} {'is' if len(missing) == 1 else 'are'} missing.",
                _DOWNLOAD,
            )
        files = [opened if path == opened.path else GGUFFile(path) for path in paths]
        for number, file in enumerate(files):
            found = self._number(file, "split.no", -1), self._number(file, "split.count", 1)
            if found != (number, count):
                holds = f"it holds part {found[0] + 1} of {found[1]}"
                raise ModelLoadError(f"{file.path}: by its name this is part {number + 1} of {count}, but {holds}.", _DOWNLOAD)
        return files

    @staticmethod
    def _number(file: GGUFFile, key: str, default: int) -> int:
        value = file.metadata.get(key, default)
        if type(value) is not int:
            raise ModelLoadError(f"{file.path}: {key} is {value!r}, expected a whole number.", "Download the file again.")
        return value
