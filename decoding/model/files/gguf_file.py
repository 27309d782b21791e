"""A GGUF file, or the parts of a split one: its metadata, and where each tensor lies.

Knows no model. The file is mapped, never read whole. Invariant: every
count, length and offset was checked against the file's size before it was used, so that a broken file costs no memory.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ConfigError
from decoding.weights.kinds import KINDS, Kind, numbered

MAGIC = b"GGUF"
SUFFIX = ".gguf"
VERSIONS = (2, 3)
ALIGNMENT, MOST_ALIGNMENT = 32, 2**16  # bytes; the default, and the largest that is believed
MOST_DIMENSIONS = 4
MOST_KEY_BYTES = 2**16 - 1
FIXED = {  # metadata values of a fixed size: numpy's type by the file's number
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9
SPLIT_COUNT, SPLIT_NUMBER = "split.count", "split.no"
SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
OTHER_TYPES = {  # that exist and are not served
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: outermost dimension first, as torch has it. rows: uint8 [product of all dimensions but the last, bytes of
    one row], mapped."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    rows: Bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """metadata: numbers, truth values and strings as they are; arrays of numbers as numpy arrays and arrays of strings
    as `Strings`. header_hash: of everything but the tensors' numbers. paths, maps: of all parts."""

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    header_hash: str
    maps: tuple[mmap.mmap, ...]

    def release(self) -> None:
        """Let the pages that were read leave memory. They come back from the disk's cache where they are read again."""
        for each in self.maps:
            each.madvise(mmap.MADV_DONTNEED)

    @property
    def architecture(self) -> str:
        return text_of(self.metadata, "general.architecture")

    @property
    def mixture(self) -> str | None:
        """The name of the kinds that it mixes, such as Q4_K_M; None where it gives none that is known."""
        from gguf import LlamaFileType  # a package that takes a while to import

        try:
            name = LlamaFileType(self.metadata.get("general.file_type")).name
        except ValueError:
            return None
        return name.removeprefix("MOSTLY_") if name.startswith("MOSTLY_") else None


class Strings(Sequence[str]):
    """An array of strings, decoded when it is listed."""

    def __init__(self, data: memoryview, places: NDArray[np.int64]) -> None:
        """places: [N, 2], start and end of each in `data`."""
        self._data, self._places = data, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        start, end = self._places[index]
        return _decoded(bytes(self._data[start:end]))


def read_gguf(paths: Sequence[Path]) -> GgufFile:
    """Read a file's metadata, or those of all parts of a split file in order. Raises ConfigError with a sentence that
    continues "FILE ", and OSError."""
    parts = [_read(path) for path in paths]
    first = parts[0]
    count = first.metadata.get(SPLIT_COUNT, 1)
    if len(parts) > 1 or count not in (0, 1):
        numbers = [part.metadata.get(SPLIT_NUMBER) for part in parts]
        if count != len(parts) or numbers != list(range(len(parts))):
            raise ConfigError(f"{paths[0].name} is part of a split file of {count} parts, and {len(parts)} are there")
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise ConfigError(f"{part.paths[0].name} has tensor {min(twice)!r}, which another part has too")
        tensors |= part.tensors
    header_hash = hashlib.sha256("".join(part.header_hash for part in parts).encode()).hexdigest()
    maps = tuple(each for part in parts for each in part.maps)
    return GgufFile(tuple(paths), first.metadata, tensors, header_hash, maps)


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts of a split file; of another one its own."""
    split = SPLIT_NAME.fullmatch(name)
    if split is None:
        return (name,)
    count = int(split[3])
    if not 1 <= int(split[2]) <= count:
        raise ConfigError(f"{name} is named as part {int(split[2])} of {count}")
    return tuple(f"{split[1]}-{number:05}-of-{split[3]}{SUFFIX}" for number in range(1, count + 1))


def text_of(metadata: Mapping[str, Any], key: str) -> str:
    """A string of the metadata. Raises ConfigError where it is missing or no string."""
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"its metadata has no string {key}")
    return value


def _read(path: Path) -> GgufFile:
    if path.stat().st_size < len(MAGIC):
        raise ConfigError(f"{path.name} is not a GGUF file: it has {path.stat().st_size} bytes")
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _Reader(path, mapped).read()
    except ConfigError as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from None


class _Reader:
    """Walks through a header. Each step first checks that the file goes on as far."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path, self._map = path, mapped
        self._data, self._all_bytes = memoryview(mapped), np.frombuffer(mapped, np.uint8)
        self._place = 0

    def read(self) -> GgufFile:
        if bytes(self._bytes(4, "its first bytes")) != MAGIC:
            raise ConfigError("it does not begin with the letters GGUF")
        (version,) = self._numbers("<I", "the version")
        if version not in VERSIONS:
            raise ConfigError(f"it is of GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read")
        num_tensors, num_values = self._numbers("<QQ", "the counts")
        self._check_count(num_values, 13, "metadata values")
        self._check_count(num_tensors, 24, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string("a metadata key", MOST_KEY_BYTES)
            if key in metadata:
                raise ConfigError(f"its metadata has {key!r} twice")
            (kind,) = self._numbers("<I", f"the type of {key!r}")
            metadata[key] = self._value(kind, key)
        places = [self._tensor_place() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment % 8 or not 8 <= alignment <= MOST_ALIGNMENT:
            raise ConfigError(f"general.alignment is {alignment!r}; it must be a multiple of 8 up to {MOST_ALIGNMENT}")
        tensors = self._tensors(places, -(-self._place // alignment) * alignment, alignment)
        header_hash = hashlib.sha256(self._data[: self._place]).hexdigest()
        return GgufFile((self._path,), metadata, tensors, header_hash, (self._map,))

    def _bytes(self, count: int, what: str) -> memoryview:
        if count > len(self._data) - self._place:
            raise ConfigError(
                f"{what} would take {count} bytes from byte {self._place} on, and the file has {len(self._data)}"
            )
        self._place += count
        return self._data[self._place - count : self._place]

    def _numbers(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form), what))

    def _check_count(self, count: int, least_bytes: int, what: str) -> None:
        left = len(self._data) - self._place
        if count * least_bytes > left:
            raise ConfigError(f"it claims {count} {what}, which {left} bytes cannot hold")

    def _string(self, what: str, most: int | None = None) -> str:
        (length,) = self._numbers("<Q", what)
        if most is not None and length > most:
            raise ConfigError(f"{what} has {length} bytes; at most {most} are read")
        return _decoded(bytes(self._bytes(length, what)))

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(f"{key!r}")
        if kind == ARRAY:
            element, count = self._numbers("<IQ", f"the array {key!r}")
            return self._strings(count, key) if element == STRING else self._array(element, count, key)
        return self._array(kind, 1, key)[0].item()

    def _array(self, kind: int, count: int, key: str) -> NDArray[Any]:
        if kind not in FIXED:
            raise ConfigError(f"its metadata value {key!r} is of type {kind}, which does not exist or is not read")
        width = np.dtype(FIXED[kind]).itemsize
        return np.frombuffer(self._bytes(count * width, f"{key!r}"), FIXED[kind])

    def _strings(self, count: int, key: str) -> Strings:
        self._check_count(count, 8, f"strings in {key!r}")
        starts: list[int] = []
        ends: list[int] = []
        data, place, end = self._data, self._place, len(self._data)
        unpack = struct.Struct("<Q").unpack_from
        for number in range(count):
            if place + 8 > end:
                raise ConfigError(f"{key!r} has {count} strings, and the file ends within string {number}")
            (length,) = unpack(data, place)
            place += 8
            if length > end - place:
                raise ConfigError(f"string {number} of {key!r} has {length} bytes, more than the file")
            starts.append(place)
            place += length
            ends.append(place)
        self._place = place
        return Strings(data, np.array([starts, ends], np.int64).T)

    def _tensor_place(self) -> tuple[str, Kind, tuple[int, ...], int, int, int]:
        """A tensor's name, kind, shape, bytes of a row, rows, and offset among the tensors."""
        name = self._string("a tensor's name", MOST_KEY_BYTES)
        (num_dimensions,) = self._numbers("<I", f"the dimensions of {name!r}")
        if not 1 <= num_dimensions <= MOST_DIMENSIONS:
            raise ConfigError(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MOST_DIMENSIONS} are read")
        shape = self._numbers(f"<{num_dimensions}Q", f"the shape of {name!r}")[::-1]
        number, offset = self._numbers("<IQ", f"the place of {name!r}")
        kind = numbered(number)
        if kind is None:
            known = OTHER_TYPES.get(number, f"number {number}")
            served = ", ".join(each.name for each in KINDS.values() if each.number is not None)
            raise ConfigError(f"tensor {name!r} is of type {known}; the types that are served are {served}")
        if 0 in shape or shape[-1] % kind.values:
            raise ConfigError(
                f"tensor {name!r} has shape {shape}, which is no number of {kind.name} blocks of {kind.values}"
            )
        return name, kind, shape, shape[-1] // kind.values * kind.num_bytes, prod(shape[:-1]), offset

    def _tensors(
        self, places: Sequence[tuple[str, Kind, tuple[int, ...], int, int, int]], start: int, alignment: int
    ) -> dict[str, GgufTensor]:
        """Tensors that lie in the file one after the other: bytes that two of them claimed would load as more numbers
        than there are."""
        tensors: dict[str, GgufTensor] = {}
        end = start
        for name, kind, shape, row_bytes, num_rows, offset in sorted(places, key=lambda place: place[5]):
            if name in tensors:
                raise ConfigError(f"it has tensor {name!r} twice")
            if offset % alignment or start + offset < end:
                raise ConfigError(f"tensor {name!r} begins at {offset}, which is within another one or not aligned")
            end = start + offset + row_bytes * num_rows
            if end > len(self._data):
                raise ConfigError(f"tensor {name!r} ends at byte {end}, and the file has {len(self._data)}")
            rows = self._all_bytes[start + offset : end].reshape(num_rows, row_bytes)
            tensors[name] = GgufTensor(name, kind, shape, rows)
        return tensors


def _decoded(text: bytes) -> str:
    """Text of a file: bytes that are no UTF-8 become question marks, as other readers have it."""
    return text.decode("utf-8", "replace")
