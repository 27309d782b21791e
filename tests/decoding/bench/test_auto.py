"""One tree against who drafts alone: the loop of users, the ratios, and that the command goes on where it stopped."""

import time
from pathlib import Path

import numpy as np
import pytest

from decoding.bench.__main__ import main
from decoding.bench.auto.runs import Run, measure_run
from decoding.bench.auto.tables import Measured, render
from decoding.bench.comparison import AGAIN
from decoding.bench.scripts import Script, Turn
from decoding.config import EngineConfig
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=300, kv_slots=8192)
    return start_engine(TargetModel.from_model(tiny("llama", 3), config), config)


def script() -> Script:
    pattern = np.random.default_rng(0).integers(3, VOCAB_SIZE, 8)
    turns = tuple(Turn(np.tile(np.roll(pattern, shift), 4).astype(np.int32), shift, shift > 0) for shift in range(2))
    return Script(name="repetition", turns=turns, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_users_at_once_are_given_the_tokens_of_plain_decoding(engine: Engine, temperature: float) -> None:
    runs = [measure_run(engine, script(), temperature, 3, name, time.perf_counter) for name in ("none", AGAIN, "auto")]
    assert [run.method for run in runs] == ["none", AGAIN, "auto"]
    assert len({run.fingerprint for run in runs}) == 1
    assert {run.tokens for run in runs} == {3 * 2 * 24}
    assert runs[0].tau == 1.0
    assert all(run.first_rate > 0 for run in runs)


def test_users_ask_with_noise_of_their_own(engine: Engine) -> None:
    alone = measure_run(engine, script(), 0.7, 1, "none", time.perf_counter)
    assert measure_run(engine, script(), 0.7, 1, "none", time.perf_counter).fingerprint == alone.fingerprint
    together = measure_run(engine, script(), 0.7, 2, "none", time.perf_counter)
    assert (together.tokens, together.fingerprint) != (alone.tokens, alone.fingerprint)


def test_a_request_that_breaks_ends_the_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no tree")

    monkeypatch.setattr(OneTree, "probe", fail)
    monkeypatch.setattr(OneTree, "propose", fail)
    with pytest.raises(RuntimeError, match="drafter failed"):
        measure_run(engine, script(), 0.0, 1, "auto", time.perf_counter)


def run(method: str, rate: float, fingerprint: int = 1) -> Run:
    return Run(
        method=method,
        tokens=100,
        forwards=50,
        drafted=150,
        seconds=100 / rate,
        first_rate=2 * rate,
        fingerprint=fingerprint,
    )


def measured(rates: dict[str, list[float]], workload: str = "code") -> Measured:
    rounds = [[run(method, each[number]) for method, each in rates.items()] for number in range(3)]
    return Measured(target="gosling", workload=workload, temperature=0.0, at_once=1, rounds=rounds)


def test_ratios_are_medians_over_rounds() -> None:
    one = measured({"none": [10, 20, 10], AGAIN: [10, 20, 10], "spine": [20, 20, 30], "auto": [20, 80, 60]})
    assert one.best_single == "spine"
    assert one.ratio("auto", "none") == 4.0
    assert one.ratio("auto", "spine") == 2.0
    assert one.first_ratio() == 2.0
    page = render([one])
    assert "| code | 0 | 1 | 10 | 1.00 | **2.00** | 4.00 | 3.0 | 2.00 | 2.00 |" in page
    assert "at least 0.97 of the best single method on 1 of 1 rows and 1.05 or more on 1" in page


def test_rows_that_are_behind_are_counted() -> None:
    rates = {"none": [10.0] * 3, AGAIN: [11.0] * 3, "spine": [20.0] * 3, "stand": [5.0] * 3, "auto": [9.0] * 3}
    page = render([measured(rates), measured({**rates, "auto": [20.0] * 3}, "stories")])
    assert "on 1 of 2 rows and 1.05 or more on 0; median 0.72, least 0.45" in page
    assert "at least 0.98 of `none` on 1, at the least 0.90. `none` differs from itself by 0.10" in page


def test_other_tokens_than_those_of_none_are_told() -> None:
    rounds = [[run("none", 1), run(AGAIN, 1), run("spine", 1, fingerprint=2), run("auto", 1)]]
    one = Measured(target="gosling", workload="code", temperature=0.0, at_once=1, rounds=rounds)
    assert one.differing == ["spine"]
    assert "**Tokens differ from `none`**: spine on code" in render([one])


@pytest.mark.slow
def test_the_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "auto.json"
    asked = ["auto", "--methods", "lookup", "--workloads", "reasoning", "--prompts", "1", "--max-tokens", "6"]
    asked += ["--rounds", "1", "--temperatures", "0", "--out", str(out)]
    assert main([*asked, "--at-once", "1"]) == 0
    first = out.read_bytes()
    assert main([*asked, "--at-once", "1,2"]) == 0
    assert out.read_bytes().startswith(first.rstrip(b"\n ]").rstrip()[:-1]), "what was measured stays as it was"
    assert out.with_suffix(".md").read_text(encoding="utf-8").count("| reasoning |") == 2
    assert out.with_suffix(".svg").is_file()
