"""The kinds of weights, a record each: how numbers lie in bytes, what unpacks them, and what multiplies them where.

Whoever reads, counts, packs or rounds weights asks the record, so a new kind is a record here and the function that it
names. Functions are named and not imported, since the server, which has no torch, reads the sizes of blocks.
Invariant: a kind of blocks becomes small integers in groups (see `Groups`) or floats, by its record alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

NUMBERS = "decoding.weights.numbers."
CODES_ON_CPU, CODES_ON_GPU = f"{NUMBERS}grouped_codes:GroupedCodes", f"{NUMBERS}device_codes:DeviceCodes"
FLOATS_ON_CPU = f"{NUMBERS}onednn_floats:OneDnnFloats"
BLOCKS, TENSORS, GROUPS = (f"decoding.weights.{each}:" for each in ("gguf_blocks", "module_tensors", "groups"))


@dataclass(frozen=True, slots=True)
class Kind:
    """What is named is "module:function", or a class.

    bits, group: of its small integers, and how many inputs have one scale; 0 where each matrix says so, and of floats.
    scale_bytes: of a packed scale, 1 where scales are whole numbers of units (see `Groups`). dtype: torch's name of
    that of floats. values, num_bytes: of a block; number: of the type in GGUF files. unpacking: names the function from
    blocks, uint8 [N, bytes], to `Parts`. mark: the end of the name of a module's tensor in
    safetensors that shows the kind, if its dtype begins with one of `dtypes`; methods: the quantisations that write it.
    opening: names the function from an `Opening` of such a module to its matrices. rounding: names the one from float32
    rows, bits and group to `Groups`. on_cpu, on_gpu: name the numbers that kernels multiply; torch's multiply floats on
    a GPU.
    """

    name: str
    bits: int = 0
    group: int = 0
    values: int = 1
    num_bytes: int = 0
    number: int | None = None
    scale_bytes: int = 2
    dtype: str = ""
    unpacking: str = ""
    mark: str = ""
    dtypes: tuple[str, ...] = ("",)
    methods: tuple[str, ...] = ()
    opening: str = ""
    rounding: str = ""
    on_cpu: str = CODES_ON_CPU
    on_gpu: str = CODES_ON_GPU

    @property
    def is_float(self) -> bool:
        """Whether its numbers are floats, each for itself."""
        return bool(self.dtype)

    def unpack(self) -> Any:
        return resolve_name(self.unpacking)

    def open(self) -> Any:
        return resolve_name(self.opening)

    def round(self) -> Any:
        return resolve_name(self.rounding)

    def packing(self, on_gpu: bool) -> Any:
        return resolve_name(self.on_gpu if on_gpu else self.on_cpu)


def _floats(number: int, name: str, num_bytes: int, dtype: str) -> Kind:
    return Kind(name, num_bytes=num_bytes, number=number, dtype=dtype, on_cpu=FLOATS_ON_CPU)


def _blocks(number: int, name: str, values: int, num_bytes: int, bits: int, group: int, scale_bytes: int = 2) -> Kind:
    """Of GGUF files."""
    return Kind(name, bits, group, values, num_bytes, number, scale_bytes, unpacking=f"{BLOCKS}{name.lower()}")


FLOAT32, INT4, INT6, INT8, GROUPED_INT8 = "F32", "int4", "int6", "int8", "grouped int8"
RECORDS = (
    _floats(0, FLOAT32, 4, "float32"),
    _floats(1, "F16", 2, "float16"),
    _blocks(2, "Q4_0", 32, 18, 4, 32),
    _blocks(3, "Q4_1", 32, 20, 4, 32),
    _blocks(6, "Q5_0", 32, 22, 5, 32),
    _blocks(7, "Q5_1", 32, 24, 5, 32),
    _blocks(8, "Q8_0", 32, 34, 8, 32),
    _blocks(10, "Q2_K", 256, 84, 4, 16),
    _blocks(11, "Q3_K", 256, 110, 4, 16),
    _blocks(12, "Q4_K", 256, 144, 4, 32, 1),
    _blocks(13, "Q5_K", 256, 176, 5, 32, 1),
    _blocks(14, "Q6_K", 256, 210, 6, 16, 1),
    _blocks(20, "IQ4_NL", 32, 18, 8, 32),
    _blocks(23, "IQ4_XS", 256, 136, 8, 32),
    _floats(30, "BF16", 2, "bfloat16"),
    _blocks(39, "MXFP4", 32, 17, 5, 32),
    Kind("packed integers", mark="weight_packed", methods=("compressed-tensors",), opening=f"{TENSORS}compressed"),
    Kind("GPTQ", mark="qweight", methods=("gptq",), opening=f"{TENSORS}gptq"),
    Kind("AWQ", mark="qweight", methods=("awq",), opening=f"{TENSORS}awq"),
    Kind("whole bytes", mark="weight", dtypes=("F8", "I8"), methods=("fp8",), opening=f"{TENSORS}whole_bytes"),
    Kind("MXFP4 of experts", 5, 32, mark="_blocks", methods=("mxfp4",), opening=f"{TENSORS}mxfp4_experts"),
    Kind(INT4, 4, 32, rounding=f"{GROUPS}quantized"),
    Kind(INT6, 6, 32, rounding=f"{GROUPS}quantized"),
    Kind(GROUPED_INT8, 8, 32, rounding=f"{GROUPS}symmetric"),
    Kind(INT8, 8, on_cpu=f"{NUMBERS}int8_panels:Int8Panels"),  # which rounds each output's weights to one scale
)
KINDS = {kind.name: kind for kind in RECORDS}


def of_floats(dtype: str) -> Kind:
    """dtype: torch's name. Whole numbers, which a model may keep as well, count as float32."""
    return next((kind for kind in KINDS.values() if kind.dtype == dtype), KINDS[FLOAT32])


def numbered(number: int) -> Kind | None:
    """The kind of a GGUF file's type; None if it is not served."""
    return next((kind for kind in KINDS.values() if kind.number == number), None)


def marked(end: str, dtype: str, method: str | None) -> Kind | None:
    """The kind that a module's tensor shows: one of the method, if there is. end: of its name; dtype: safetensors'."""
    found = [kind for kind in KINDS.values() if kind.mark and end.endswith(kind.mark) and dtype.startswith(kind.dtypes)]
    return max(found, key=lambda kind: method in kind.methods, default=None)


def methods() -> Sequence[str]:
    """The quantisations of safetensors that are read."""
    return [method for kind in KINDS.values() for method in kind.methods]
