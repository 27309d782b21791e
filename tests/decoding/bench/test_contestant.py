"""Real short runs on a tiny model: rounds, sessions, and the prompts of a workload."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from decoding.bench.__main__ import COMMANDS, main
from decoding.bench.contestant import Contestant, in_rounds, warm_up
from decoding.bench.tables.figures import pool, same_tokens
from decoding.bench.workload import PromptChoice, Workload, load_workload
from decoding.config import EngineConfig
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.one_tree.one_tree import OneTree
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


def contestant(engine: Engine, method: str, is_cold: bool = False) -> Contestant:
    return Contestant(engine, method, SpeculationParams(method=method, max_nodes=8), is_cold)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_everybody_answers_every_task_with_the_same_tokens(
    engine: Engine, workload: Workload, temperature: float
) -> None:
    everybody = [contestant(engine, method) for method in ("none", "lookup", "recycle", "isotropic", "auto")]
    tasks, answers = workload.tasks(temperature), list[None]()
    warm_up(everybody, tasks[0])
    plain, *drafted = in_rounds(everybody, tasks, lambda: answers.append(None))
    assert len(answers) == len(everybody) * len(tasks)
    assert all(same_tokens(replies, plain) for replies in drafted)
    assert pool("none", plain).tau == 1.0
    figures = [pool("drafted", replies) for replies in drafted]
    assert all(len(row.rates) == len(tasks) and row.drafted <= 8 * row.forwards for row in figures)
    assert any(0 < row.accepted < row.drafted for row in figures), "nothing was accepted, so nothing was shown"


def test_a_cold_contestant_learns_nothing_from_one_prompt_to_the_next(engine: Engine, workload: Workload) -> None:
    task = workload.tasks(0.0)[0]
    cold, warm = contestant(engine, "recycle", is_cold=True), contestant(engine, "recycle")
    assert cold.answer(task).forwards == cold.answer(task).forwards
    assert warm.answer(task).forwards >= warm.answer(task).forwards


def test_a_request_that_breaks_ends_the_run(
    engine: Engine, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no tree")

    monkeypatch.setattr(OneTree, "probe", fail)
    monkeypatch.setattr(OneTree, "propose", fail)
    with pytest.raises(RuntimeError, match="drafter failed"):
        contestant(engine, "auto").answer(workload.tasks(0.0)[0])


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_is_found_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"gander bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"), [([], "required: name"), (["nobody"], "invalid choice"), (["real"], "gander bench real")]
)
def test_a_name_that_is_none_of_ours_is_refused(
    given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given)
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_short_benchmarks_print_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shapes", "--rounds", "1", "--context", "16"]) == 0
    assert "| float32 |" in capsys.readouterr().out
    assert main(["drafting", "--steps", "2", "--budget", "4"]) == 0
    assert "spine" in capsys.readouterr().out
