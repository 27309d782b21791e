"""Makes the measured section of the page on GPUs of what the parts found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.bench.gpu.first_hour.deadline import Found
from decoding.bench.tables.table import table

TABLES = {  # of a measure: what its names are, and what its numbers are
    "replays": ("rows of a captured forward", "ms"),
    "replays compiled": ("rows of a captured and compiled forward", "ms"),
    "first tokens": ("tokens of a prompt", "s"),
    "commits": ("requests whose paths are kept", "us"),
    "draws": ("rows drawn", "us"),
}


def render(parts: Sequence[Found]) -> str:
    """Markdown of everything that was found, and of what was not."""
    return "\n\n".join(text for part in parts for text in _of_part(part))


def _of_part(part: Found) -> list[str]:
    texts = [f"**{part.part.capitalize()}**, on {part.where}."]
    rates = {name: found for name, found in part.found.items() if _has(found, "tokens_a_second")}
    for name, found in part.found.items():
        if name in TABLES:
            what, unit = TABLES[name]
            texts.append(table([what, unit], [[key, f"{number:.3g}"] for key, number in found.items()]))
        elif name.startswith(("attention", "products", "tiles", "same tokens", "gaps", "ceilings", "compilations")):
            texts.append(f"{name.capitalize()}: {_in_words(found)}.")
    if rates:
        rows = [
            [name, f"{found['tokens_a_second']:,.0f}", _tokens_a_forward(found), _same(found)]
            for name, found in rates.items()
        ]
        texts.append(table(["requests", "tokens a second", "tokens a forward", "same as plain"], rows))
    texts += [f"Not measured: {name}, {reason.splitlines()[0]}." for name, reason in part.failed.items()]
    if part.left_out:
        texts.append(f"There was no time for {', '.join(part.left_out)}.")
    return texts


def _has(found: Any, name: str) -> bool:
    return isinstance(found, dict) and name in found


def _tokens_a_forward(found: dict[str, Any]) -> str:
    return f"{found['tokens_a_forward']:.2f}" if "tokens_a_forward" in found else ""


def _same(found: dict[str, Any]) -> str:
    return f"{found['same']} of {found['of']}" if "same" in found else ""


def _in_words(found: Any) -> str:
    if isinstance(found, dict):
        return "; ".join(f"{name} {_in_words(each)}" for name, each in found.items())
    if isinstance(found, list):
        return ", ".join(map(_in_words, found)) or "none"
    return f"{found:.4g}" if isinstance(found, float) else str(found)
