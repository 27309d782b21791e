"""Makes the measured section of the page on GPUs of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.bench.gpu.first_hour.record import Line
from decoding.bench.tables.table import table

LEFT_TO_THE_RECORD = ("profile", "health", "memory", "kernels of the host", "end")


def render(lines: Sequence[Line], where: str) -> str:
    """Markdown of everything that was measured, and of what was not. where: the device and the machine."""
    texts = [f"On {where}, by `python -m decoding.bench.gpu.first_hour`."]
    rates = [line for line in lines if _has(line.found, "plain")]
    if rates:
        head = ["requests", "step, ms", "of it beside the forward", "tokens/s", "drafted, tokens/s", "same as plain"]
        texts.append(table(head, [_rate(line) for line in rates]))
    for line in lines:
        if line.failed is None and line not in rates and line.name not in LEFT_TO_THE_RECORD:
            texts.append(_of(line))
    texts += [
        f"Not measured: {line.stage}, {line.name}: {line.failed.splitlines()[0]}" for line in lines if line.failed
    ]
    return "\n\n".join(text for text in texts if text)


def _of(line: Line) -> str:
    found = line.found
    if isinstance(found, dict) and found and all(isinstance(each, dict) for each in found.values()):
        names = list(dict.fromkeys(name for each in found.values() for name in each))
        rows = [[key, *(_in_words(each.get(name, "")) for name in names)] for key, each in found.items()]
        return f"{line.name.capitalize()}:\n\n{table([line.stage, *names], rows)}"
    return f"{line.name.capitalize()}: {_in_words(found)}." if found else ""


def _rate(line: Line) -> list[str]:
    plain, drafted = line.found["plain"], line.found["drafted"]
    numbers = [plain["step_ms"], plain["beside_forward_ms"], plain["tokens_a_second"], drafted["tokens_a_second"]]
    return [line.name, *map(_in_words, numbers), f"{line.found['same']} of {line.found['of']}"]


def _has(found: Any, name: str) -> bool:
    return isinstance(found, dict) and isinstance(found.get(name), dict)


def _in_words(found: Any) -> str:
    if isinstance(found, dict):
        return "; ".join(f"{name} {_in_words(each)}" for name, each in found.items())
    if isinstance(found, list):
        return ", ".join(map(_in_words, found)) or "none"
    return f"{found:,.4g}" if isinstance(found, float) else str(found)
