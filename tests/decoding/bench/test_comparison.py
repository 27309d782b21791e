"""Real short runs on a tiny model: every method appears, and every method gives the same tokens."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from decoding.bench.__main__ import main
from decoding.bench.comparison import AGAIN, compare, contestants_of
from decoding.bench.contestant import EngineContestant, Reply, Task
from decoding.bench.profile import profile, render_profile
from decoding.bench.variant import drafting_methods, variants
from decoding.bench.workload import PromptChoice, Workload, load_workload
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny

SEED_OF_A_LIVELY_MODEL = 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=200, kv_slots=8192)
    return start_engine(TargetModel.from_model(tiny("llama", SEED_OF_A_LIVELY_MODEL), config), config)


@pytest.fixture(scope="module")
def workload() -> Workload:
    random = np.random.default_rng(0)
    pattern = random.integers(3, VOCAB_SIZE, 8)
    prompts = tuple(np.tile(np.roll(pattern, shift), 5).astype(np.int32) for shift in range(3))
    return Workload("repetition", prompts, max_tokens=48)


class WrongContestant:
    """Says it is ours, and answers token 7."""

    label = "wrong"
    budget: int | None = 8
    is_ours = True

    def answer(self, task: Task) -> Reply:
        return Reply(tokens=np.full(task.max_tokens, 7, np.int32), seconds=1.0, forwards=1)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_run_has_every_row_and_every_method_gives_the_same_tokens(
    engine: Engine, workload: Workload, temperature: float
) -> None:
    rows = variants(drafting_methods(engine.methods), [8])
    stock = tiny("llama", SEED_OF_A_LIVELY_MODEL)
    answers: list[None] = []
    contestants = contestants_of(engine, stock, rows, is_cold=False)
    found = compare(workload, temperature, contestants, lambda: answers.append(None))
    assert found.differing == []
    assert [row.label for row in found.figures] == [
        *(row.label for row in rows),
        AGAIN,
        "generate",
        "generate + prompt lookup",
    ]
    assert {"spine", "recycle", "isotropic k=3", "isotropic k=5", "lookup", "auto"} < {row.label for row in rows}
    assert len(answers) == len(contestants) * len(workload.prompts)
    assert found.none.tau == 1.0
    assert found.generate_same == (3 if temperature == 0 else None)
    drafting = [row for row in found.figures if row.budget == 8]
    assert all(row.drafted <= 8 * row.forwards for row in drafting)
    assert all(len(row.rates) == len(workload.prompts) for row in found.figures)
    assert any(0 < row.accepted < row.drafted for row in drafting), "nothing was accepted, so nothing was shown"


def test_whoever_gives_other_tokens_is_named(engine: Engine, workload: Workload) -> None:
    none = EngineContestant(engine, "none", variants([], [])[0].speculation)
    assert compare(workload, 0.0, [none, WrongContestant()]).differing == ["wrong at 8"]


def test_a_cold_contestant_learns_nothing_from_one_prompt_to_the_next(engine: Engine, workload: Workload) -> None:
    speculation = variants(["recycle"], [8])[1].speculation
    task = Task(prompt=workload.prompts[0], max_tokens=24, temperature=0.0, seed=0)
    cold = EngineContestant(engine, "recycle", speculation, is_cold=True)
    warm = EngineContestant(engine, "recycle", speculation)
    assert cold.answer(task).forwards == cold.answer(task).forwards
    assert warm.answer(task).forwards >= warm.answer(task).forwards


def test_a_profile_has_the_engines_phases(engine: Engine, workload: Workload) -> None:
    times = profile(engine, workload, variants(["lookup"], [8])[1], temperature=0.0)
    assert {"schedule", "draft", "forward", "sample", "commit", "observe", "step"} <= set(times.mean)
    assert sum(times.mean.values()) <= 2.05 * times.mean["step"]
    assert "| lookup | 8 |" in render_profile([times])


def test_a_workload_without_its_file_is_left_out_and_long_prompts_are_passed_over(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "a a a a"}\n{"prompt": "a b"}\n', encoding="utf-8")
    choice = PromptChoice(count=5, max_tokens=8, max_prompt_len=3, data=tmp_path)
    found = load_workload("humaneval", tokenizer, choice)
    assert found is not None
    assert [prompt.tolist() for prompt in found.prompts] == [[1, 0]]
    elsewhere = PromptChoice(count=5, max_tokens=8, max_prompt_len=3, data=tmp_path / "nowhere")
    assert load_workload("humaneval", tokenizer, elsewhere) is None


@pytest.mark.slow
def test_the_command_measures_a_shape_and_leaves_page_and_figures(tmp_path: Path) -> None:
    assert main(["shapes", "--quick", "--out", str(tmp_path)]) == 0
    assert "| bfloat16 | 256 |" in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in (tmp_path / "benchmarks.json").read_text(encoding="utf-8")
