"""Safetensors files, without their data: sizes and dtypes from headers, identity from hashes.

A file is an 8-byte little-endian header length, a JSON header, and the data. Only a hub checkpoint's content
hashes say for certain that two files are equal; a folder is sampled (`sample_digest`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.errors import fail

INDEX_NAME = "model.safetensors.index.json"
PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
EDGE_BYTES = 64 * 1024
PIECE_BYTES = 4 * 1024
PIECES = 64


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Attributes:
    data_bytes: tensor data of all files; None if there are no (or not all) files.
    identity: 16 hex digits; empty with data_bytes None.
    dtypes: as safetensors spells them: BF16, F16, F32, F8_E4M3, ...
    """

    data_bytes: int | None = None
    identity: str = ""
    dtypes: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, kw_only=True)
class Header:
    data_bytes: int
    dtypes: frozenset[str]


def header_length(prefix: bytes, where: str) -> int:
    """Bytes of the JSON header, from the file's first 8 bytes."""
    if prefix.startswith(b"version "):
        raise fail(f"{where} is a Git LFS pointer, not weights", "Run `git lfs pull` in its folder")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < PREFIX_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise fail(f"{where} is not a safetensors file", "Download it again")
    return length


def parse_header(raw: bytes, where: str) -> Header:
    try:
        tensors = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        ends = [int(entry["data_offsets"][1]) for entry in tensors.values()]
        dtypes = frozenset(str(entry["dtype"]) for entry in tensors.values())
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        raise fail(f"{where} has no readable safetensors header", "Download it again") from None
    return Header(data_bytes=max(ends, default=0), dtypes=dtypes)


def used_files(names: Iterable[str], index: Config | None) -> tuple[str, ...]:
    """The files vLLM loads: those the index names, or every safetensors file if there is no index."""
    if index is None:
        return tuple(sorted(name for name in names if name.endswith(".safetensors") and "/" not in name))
    return tuple(sorted(set(index.section("weight_map").values.values())))


def content_identity(hashes: Mapping[str, str]) -> str:
    """Identity from the content hash of each file: the same for the hub and for its cache."""
    return _digest(f"{name} {hashes[name]}\n" for name in sorted(hashes))


def folder_weights(folder: Path, *, incomplete_ok: bool = False) -> Weights:
    """Weights of a folder.

    A file that is a link into a Hugging Face cache is known by the content hash in its blob's name, so a snapshot
    folder and the hub id it came from have one identity. Other files are identified by name, size, header and a
    sample of the data: a copy of the same folder elsewhere is the same, a hub id is not.

    Raises:
        FactsError: a file is cut short or no safetensors file; the index names a file that is not there (with
            `incomplete_ok` this means no weights instead).
    """
    names = [path.name for path in folder.glob("*.safetensors")]
    index_path = folder / INDEX_NAME
    index = Config.parse(index_path.read_bytes(), str(index_path)) if index_path.is_file() else None
    files = used_files(names, index)
    absent = [name for name in files if not (folder / name).is_file()]
    if absent and not incomplete_ok:
        raise fail(
            f"{folder} lacks {', '.join(absent)}, named by {INDEX_NAME}", "Finish the download of the missing files"
        )
    if absent or not files:
        return Weights()
    headers = {name: _read_header(folder / name) for name in files}
    blobs = {name: blob for name in files if (blob := cached_blob_name(folder / name)) is not None}
    if len(blobs) == len(files):
        identity = content_identity(blobs)
    else:
        identity = _digest(f"{name} {sample_digest(folder / name)}\n" for name in files)
    return Weights(
        data_bytes=sum(header.data_bytes for header in headers.values()),
        identity=identity,
        dtypes=frozenset().union(*(header.dtypes for header in headers.values())),
    )


def cached_blob_name(path: Path) -> str | None:
    """The content hash of a file in a Hugging Face cache (`snapshots/<commit>/x -> ../../blobs/<hash>`), else None.

    One link only is followed: a blob may itself be a link into a store whose names are other hashes.
    """
    if not path.is_symlink():
        return None
    target = path.readlink()
    return target.name if target.parent.name == "blobs" else None


def sample_digest(path: Path) -> str:
    """sha256 over size, header, the first and last 64 KiB of the data and 64 evenly spaced pieces of 4 KiB.

    Cheap (under 400 KiB a file) and enough for a retrained checkpoint, where nearly all values change. Limits: an edit
    of a few values between the pieces is not seen. Who needs certainty gives a hub id, whose content hashes are used.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        start = PREFIX_BYTES + header_length(file.read(PREFIX_BYTES), str(path))
        file.seek(0)
        digest.update(file.read(start))
        pieces = [(start, EDGE_BYTES), (max(start, size - EDGE_BYTES), EDGE_BYTES)]
        pieces += [(start + (size - start) * i // PIECES, PIECE_BYTES) for i in range(PIECES)]
        for offset, length in pieces:
            file.seek(offset)
            digest.update(file.read(length))
    return digest.hexdigest()


def _read_header(path: Path) -> Header:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(file.read(PREFIX_BYTES), str(path))
        header = parse_header(file.read(length), str(path))
    expected = PREFIX_BYTES + length + header.data_bytes
    if size != expected:
        raise fail(f"{path} has {size} bytes, its header describes {expected}", "Download it again")
    return header


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
