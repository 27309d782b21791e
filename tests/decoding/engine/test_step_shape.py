"""A decode step stays a page: the files it passes, the records it handles and what its module imports are counted."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import CostCurve
from decoding.engine import engine as step_module
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine

ROOT = Path(step_module.__file__).parents[1]
MOST_FILES, MOST_RECORDS, MOST_IMPORTS = 39, 41, 24
NUM_STEPS = 9


class Passed:
    """What one step passes: files of `decoding` whose Python functions it calls, compiled ones counted by their file,
    and the record types that are arguments, locals or results of those calls."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.records: set[type] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or ROOT not in path.parents:
            return
        self.files.add(str(path.relative_to(ROOT)))
        for value in (*frame.f_locals.values(), result):
            self.records.update(map(type, value if type(value) in (list, tuple) else [value]))

    @property
    def record_names(self) -> list[str]:
        return sorted(kind.__qualname__ for kind in self.records if is_record(kind))


def is_record(kind: type) -> bool:
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_one = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_named_tuple
    return is_one and kind.__module__.startswith("decoding.")


def passed_by(act: Callable[[], object]) -> Passed:
    passed = Passed()
    sys.setprofile(passed)
    try:
        act()
    finally:
        sys.setprofile(None)
    return passed


def default_steps(engine: Engine) -> list[Passed]:
    """Decode steps of requests that ask for nothing, each by itself, of those that drafted."""
    prompt = np.tile(np.arange(100, 120, dtype=np.int32), 3)
    sampling = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    found: list[Passed] = []
    for number in range(NUM_STEPS):  # a reply drafts at least once, and no more where its first drafts were wrong
        engine.add(Request(id=str(number), prompt=prompt, sampling=sampling, speculation=SpeculationParams()))
        while engine.has_work:
            drafted: list[bool] = []

            def step(told: list[bool] = drafted) -> None:
                stats = engine.step().stats
                assert stats is not None
                told.append(stats.prefill_rows == 0 and any(each.drafts for each in stats.counts_by_method.values()))

            passed = passed_by(step)
            if drafted[0]:
                found.append(passed)
    assert len(found) >= NUM_STEPS
    return found


def test_a_default_decode_step_passes_few_files_and_handles_few_records() -> None:
    engine = load_engine(EngineConfig(model="gosling", draft_model="none", kv_slots=4096, threads=1))
    engine.costs.curve = CostCurve(base=3.5e-4, token=4e-5, key=3e-8, few=4, few_token=7e-6)  # of a quiet machine
    engine.costs._take_curves = lambda: None  # type: ignore[method-assign]
    steps = default_steps(engine)
    files = of_most(sorted(step.files) for step in steps)
    records = of_most(step.record_names for step in steps)
    assert 0 < len(files) <= MOST_FILES, files
    assert 0 < len(records) <= MOST_RECORDS, records


def of_most(names_by_step: Iterable[list[str]]) -> list[str]:
    """What at least three steps of four name: the rest differs with the text, and so with the CPU."""
    by_step = list(names_by_step)
    counts = Counter(name for names in by_step for name in names)
    return sorted(name for name, count in counts.items() if 4 * count >= 3 * len(by_step))


def test_the_module_of_the_step_imports_little() -> None:
    tree = ast.parse(Path(step_module.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node for node in imports if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    assert len(names) <= MOST_IMPORTS
