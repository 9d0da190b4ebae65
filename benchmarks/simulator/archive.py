"""A record that is whole at any moment: small compressed tars, one after the other, in a few files.

A run on a borrowed machine may be cut off, and what it left by then has to be readable: all of it but for the
last addition, if that was under way.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

PART_BYTES = 14 << 20
_PART = "record-*.tar.xz"


class Archive:
    """Appends to the newest `record-N.tar.xz` of a folder; a part that would grow too long is followed."""

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self._folder = folder
        self._part_bytes = part_bytes
        self._part = 0

    def add(self, files: dict[str, bytes]) -> None:
        """Files by name; they arrive together or not at all."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        stream = lzma.compress(buffer.getvalue(), preset=0)
        path = self._path()
        if path.exists() and path.stat().st_size + len(stream) > self._part_bytes:
            self._part += 1
            path = self._path()
        with path.open("ab") as file:
            file.write(stream)

    def _path(self) -> Path:
        return self._folder / _PART.replace("*", str(self._part))


class GrowingLog:
    """A log that another process writes, archived slice by slice as `NAME/0000`, `NAME/0001`, ..."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._slices = 0

    def new_slice(self) -> dict[str, bytes]:
        """The whole lines that came since the last call; nothing if there are none."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return {}
        name = f"{self._path.name}/{self._slices:04d}"
        self._offset += len(data)
        self._slices += 1
        return {name: data}


def unpack(folder: Path, target: Path, logs: tuple[str, ...]) -> None:
    """Write the files of an archive under `target`, and each of its growing logs as one file."""
    parts = sorted(folder.glob(_PART), key=lambda path: int(path.name.split("-")[1].split(".")[0]))
    for part in parts:
        for data in _whole_streams(part.read_bytes()):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                tar.extractall(target, filter="data")
    for name in logs:
        slices = sorted((target / name).glob("*")) if (target / name).is_dir() else []
        content = b"".join(path.read_bytes() for path in slices)
        for path in slices:
            path.unlink()
        if slices:
            (target / name).rmdir()
        (target / name).write_bytes(content)


def _whole_streams(data: bytes) -> Iterator[bytes]:
    while data:
        decompressor = lzma.LZMADecompressor()
        content = decompressor.decompress(data)
        if not decompressor.eof:  # cut off
            return
        yield content
        data = decompressor.unused_data
