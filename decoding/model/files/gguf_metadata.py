"""A GGUF file's metadata below the name of its architecture, checked as they are read, and what they say of rotation.

Metadata keys: ggml's docs/gguf.md and llama.cpp's src/llama-arch.cpp. Knows no architecture. Invariant: counts are
positive and numbers finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from decoding.errors import ConfigError
from decoding.model.files.gguf_file import GgufFile, Strings

LARGEST = 2**31 - 1
ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
SCALE_FACTORS = ("rope.scaling.factor", "rope.scale_linear")  # the second in older files
Fields = dict[str, Any]


class Metadata:
    """A file's metadata below the name of its architecture, checked as it is read."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self._architecture = file, file.architecture

    def has(self, name: str) -> bool:
        """Whether the file gives it: a count of 0 says that there is none."""
        value = self.file.metadata.get(f"{self._architecture}.{name}")
        return value is not None and not (type(value) is int and value == 0)

    def count(self, name: str, default: int | None = None) -> int:
        """A number from 1 on, the same for all layers that have one: of the others a file says 0. Raises ConfigError
        for anything else."""
        key = f"{self._architecture}.{name}"
        value = self.file.metadata.get(key, default)
        if isinstance(value, np.ndarray):
            found = np.unique(value[value != 0])
            value = found[0].item() if len(found) == 1 else value
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise ConfigError(f"{key} is {shown(value)}; it must be an integer from 1 to {LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number. Raises ConfigError for anything else."""
        key = f"{self._architecture}.{name}"
        value = self.file.metadata.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ConfigError(f"{key} is {shown(value)}; it must be a finite number")
        return float(value)

    @property
    def num_layers(self) -> int:
        """Without those that only draft, which come last."""
        return self.count("block_count") - self.num_drafting

    @property
    def num_drafting(self) -> int:
        """Layers of an MTP head."""
        key = f"{self._architecture}.nextn_predict_layers"
        value = self.file.metadata.get(key, 0)
        if type(value) is not int or not 0 <= value < self.count("block_count"):
            raise ConfigError(f"{key} is {shown(value)}; it must be a number of layers, fewer than all")
        return value

    def factors(self, tensor: str) -> list[float]:
        """The numbers of a small tensor. Raises ConfigError where it is missing, large or not finite."""
        found = self.file.tensors.get(tensor)
        if found is None or found.kind.name != "F32" or len(found.shape) != 1 or found.shape[0] > 2**16:
            raise ConfigError(f"tensor {tensor!r} is missing, or is no short list of 32-bit numbers")
        values: list[float] = found.rows.view("<f4").reshape(-1).tolist()
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ConfigError(f"tensor {tensor!r} has numbers that are not positive and finite")
        return values


def rope_of(metadata: Metadata, head_dim: int) -> Fields:
    """transformers' rope_parameters. Factors for each frequency (Llama 3.1) are those of a longrope that is always in
    force."""
    num_turned = metadata.count("rope.dimension_count", head_dim)
    if num_turned > head_dim:
        raise ConfigError(f"its rope.dimension_count is {num_turned}, and its heads are {head_dim} wide")
    rope: Fields = {"rope_theta": metadata.number("rope.freq_base", 10_000.0), "rope_type": "default"}
    if num_turned != head_dim:
        rope["partial_rotary_factor"] = num_turned / head_dim
    longest = metadata.count("context_length")
    factor = next((name for name in SCALE_FACTORS if metadata.has(name)), SCALE_FACTORS[0])
    unsaid = "linear" if metadata.has(factor) else "none"  # as in llama.cpp
    kind = metadata.file.metadata.get(f"{metadata.file.architecture}.rope.scaling.type", unsaid)
    if ROPE_FACTORS in metadata.file.tensors:
        factors = metadata.factors(ROPE_FACTORS)
        return rope | {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": longest,
            "factor": 1.0,
            "attention_factor": 1.0,
        }
    if LONG_FACTORS in metadata.file.tensors:
        rope |= {
            "rope_type": "longrope",
            "short_factor": metadata.factors(SHORT_FACTORS),
            "long_factor": metadata.factors(LONG_FACTORS),
            "original_max_position_embeddings": metadata.count("rope.scaling.original_context_length", longest),
        }
        if metadata.has("rope.scaling.attn_factor"):
            rope["attention_factor"] = metadata.number("rope.scaling.attn_factor")
        return rope
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": metadata.number(factor)}
    elif kind != "none":
        raise ConfigError(f"its rope.scaling.type is {shown(kind)}; none, linear and yarn are served, and factors")
    if kind == "yarn":
        original = metadata.count("rope.scaling.original_context_length", longest)
        rope |= {"original_max_position_embeddings": original}
        if metadata.has("rope.scaling.attn_factor"):  # llama.cpp multiplies YaRN's own by it
            own = 1.0 + 0.1 * math.log(max(1.0, rope["factor"]))
            rope["attention_factor"] = metadata.number("rope.scaling.attn_factor") * own
        for name, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if metadata.has(f"rope.scaling.{theirs}"):
                rope[name] = metadata.number(f"rope.scaling.{theirs}")
    return rope


def sections_of(metadata: Metadata, num_turned: int) -> Fields:
    """How many of a head's pairs turn by a token's position in time, height and width (M-RoPE, arXiv 2409.12191), where
    the file says so. num_turned: numbers of a head that turn. Raises ConfigError where they are not these."""
    key = f"{metadata.file.architecture}.rope.dimension_sections"
    value = metadata.file.metadata.get(key)
    if value is None:
        return {}
    sections = value[:3].tolist() if isinstance(value, np.ndarray) else []
    if any(type(each) is not int or each < 0 for each in sections) or 2 * sum(sections) != num_turned:
        raise ConfigError(f"{key} is {shown(value)}, whose first three must add up to {num_turned // 2}, half a head")
    return {"mrope_section": sections}


def shown(value: Any) -> str:
    if isinstance(value, np.ndarray | Strings):
        return f"a list of {len(value)}"
    return "missing" if value is None else repr(value)[:80]
