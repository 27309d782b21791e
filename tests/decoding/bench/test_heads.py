"""Heads and draft models side by side: the command on a tiny pair, what it does not measure twice, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from decoding.bench.__main__ import main
from decoding.bench.heads import target as heads_target
from decoding.bench.heads.book import Finding, Setting, Size
from decoding.bench.heads.contender import read_contender
from decoding.bench.heads.tables import Row, Seed, render
from decoding.bench.tables.figures import Figures
from decoding.drafting.eagle.checkpoint import save_head
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.errors import ConfigError
from tests.heads import new_head, trained_head
from tests.models import VOCAB_SIZE, correlated, tiny
from tests.pairs import NOISE

MAIN, SPEED, MEMORY = 1, 2, 3  # tables of one temperature, by their order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, a draft model and two heads for it, and prompts."""
    folder = tmp_path_factory.mktemp("models")
    model = tiny("llama")
    model.save_pretrained(folder / "target")
    tokenizer = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "target" / "tokenizer.json"))
    correlated("llama", NOISE).save_pretrained(folder / "draft")
    (folder / "draft" / "tokenizer.json").write_bytes((folder / "target" / "tokenizer.json").read_bytes())
    save_head(trained_head("llama"), folder / "trained", "tiny")
    save_head(new_head(model.get_input_embeddings().weight.detach(), seed=1), folder / "fresh", "tiny")
    prompts = [" ".join(f"w{3 + (7 * word + text) % 190}" for word in range(20)) for text in range(3)]
    (folder / "humaneval.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in prompts))
    return folder


def run(folder: Path, out: Path, *given: str) -> int:
    options = ["--model", str(folder / "target"), "--data", str(folder), "--out", str(out), "--threads", "1"]
    options += ["--workloads", "humaneval", "--prompts", "2", "--rounds", "4", "--max-tokens", "12"]
    return main(["heads", *options, *given])


def contenders(folder: Path, **named: str) -> list[str]:
    return [word for name, own in named.items() for word in ("--contender", f"{name}={folder / own}")]


def raw(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "heads.json").read_text(encoding="utf-8"))["table"]["figures"]
    return found


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of every engine from here on, who drafts in it."""
    names: list[str] = []

    def watched(config: Any) -> Engine:
        names.append(Path(config.draft_model).name)
        return load_engine(config)

    monkeypatch.setattr(heads_target, "load_engine", watched)
    return names


@pytest.mark.slow
def test_what_is_known_is_not_measured_again_and_what_is_new_joins_it(
    folder: Path, tmp_path: Path, loaded: list[str]
) -> None:
    both = contenders(folder, draft="draft", head="trained")
    assert run(folder, tmp_path, *both) == 0
    assert loaded == ["draft", "trained", "none", "draft", "trained"]
    before = (tmp_path / "heads.md").read_text(encoding="utf-8")
    assert str(folder) not in before + (tmp_path / "heads.json").read_text(encoding="utf-8")
    counted = [each for each in raw(tmp_path)["findings"] if not each["setting"]["machine"]]
    assert [each["setting"]["temperature"] for each in counted] == [0, 1, 0, 1]
    for each in counted:
        figures = each["figures"]
        assert figures["tokens"] > figures["forwards"], "nothing was accepted"
        assert 40 * figures["forwards"] < figures["drafted"] <= 59 * figures["forwards"]
    timed = [each for each in raw(tmp_path)["findings"] if each["setting"]["machine"]]
    assert [len(each["figures"]["rates"]) for each in timed] == [4] * 4  # more rounds than prompts

    loaded.clear()
    assert run(folder, tmp_path, *both) == 0
    assert loaded == []
    assert (tmp_path / "heads.md").read_text(encoding="utf-8") == before
    assert run(folder, tmp_path, *both, *contenders(folder, another="fresh"), "--no-timing") == 0
    assert loaded == ["fresh"]
    assert len(raw(tmp_path)["findings"]) == 10
    assert run(folder, tmp_path, *contenders(folder, renamed="fresh"), "--no-timing", "--temperatures", "1") == 0
    assert loaded == ["fresh"]
    shorter = ("--no-timing", "--temperatures", "1", "--max-tokens", "8")
    assert run(folder, tmp_path, *contenders(folder, renamed="fresh"), *shorter) == 0
    assert loaded == ["fresh", "fresh"], "with other options figures are others"


@pytest.mark.slow
def test_other_tokens_fail_the_command_and_are_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(folder, tmp_path, *contenders(folder, head="trained"), "--no-timing", "--temperatures", "0") == 0
    file = tmp_path / "heads.json"
    (known,) = raw(tmp_path)["findings"]
    file.write_text(file.read_text(encoding="utf-8").replace(known["replies"], "0" * 16), encoding="utf-8")
    monkeypatch.setattr("decoding.bench.heads.__main__.same_tokens", lambda *_: False)
    assert run(folder, tmp_path, *contenders(folder, another="fresh"), "--no-timing", "--temperatures", "0") == 1
    assert run(folder, tmp_path, *contenders(folder, another="fresh"), "--no-tau", "--temperatures", "0") == 1
    assert len(raw(tmp_path)["findings"]) == 1


def figures(tokens: int, forwards: int, *rates: float) -> Figures:
    return Figures(
        label="any",
        tokens=tokens,
        forwards=forwards,
        drafted=0,
        accepted=0,
        seconds=len(rates) / sum(1 / rate for rate in rates) / 100,
        rates=list(rates),
    )


def setting(workload: str) -> Setting:
    return Setting(
        target="",
        numbers="",
        workload=workload,
        temperature=0.0,
        prompts="",
        num_prompts=3,
        max_tokens=8,
        way="any",
    )


def seed(tau: float, speedup: float, run: str = "first", workloads: tuple[str, ...] = ("code", "stories")) -> Seed:
    none = figures(30, 30, 10.0, 20.0, 30.0)
    speeds = {
        (workload, 0.0): Finding(
            contender="any",
            setting=setting(workload),
            figures=figures(30, 10, 10 * speedup, 20 * speedup, 300 * speedup),
            run=run,
            none=none,
        )
        for workload in workloads
    }
    taus = {(workload, 0.0): tau + place for place, workload in enumerate(workloads)}
    size = Size(contender="any", target="", numbers="", parameters=1_200_000, weight_bytes=2**20, slot_bytes=512)
    return Seed(taus, speeds, size)


def table_of(rows: list[Row], place: int) -> list[str]:
    """The lines under one of the headings."""
    return render(rows, ["code", "stories"], [0.0]).split("####")[place].splitlines()[4:]


def test_a_row_has_the_mean_of_its_seeds_and_the_least_and_the_most() -> None:
    rows = [Row("draft", [seed(2.0, 1.5)]), Row("head", [seed(2.0, 1.0), seed(2.5, 1.5), seed(3.0, 2.0)])]
    draft, head, *_ = table_of(rows, MAIN)
    assert draft == "| draft | 1.50 | 2.00 | 1.50 | 3.00 | 1.50 | 2.50 |"
    code = "1.50 (1.00 to 2.00) | 2.50 (2.00 to 3.00)"
    assert head == f"| head | {code} | 1.50 (1.00 to 2.00) | 3.50 (3.00 to 4.00) | {code[:19]} | 3.00 (2.50 to 3.50) |"
    assert table_of(rows, MEMORY)[1] == "| head | 1.20 | 1.00 | 512 |"


def test_an_average_is_of_all_workloads_or_none() -> None:
    rows = [Row("head", [seed(2.0, 1.5, workloads=("code",)), Seed()])]
    assert table_of(rows, MAIN)[0] == "| head | 1.50 | 2.00 |  |  |  |  |"


def test_contenders_are_held_against_the_first_only_in_the_same_rounds() -> None:
    rows = [Row("draft", [seed(2.0, 1.5)]), Row("head", [seed(2.0, 3.0)]), Row("later", [seed(2.0, 3.0, "second")])]
    assert [line.split(" | ")[-1] for line in table_of(rows, SPEED)[:3]] == ["1.00 |", "2.00 |", " |"]


@pytest.mark.parametrize(
    ("given", "model", "sentence"),
    [
        ("head=nowhere", "gosling", "NAME=FOLDER"),
        ("nowhere", "gosling", "NAME=FOLDER"),
        ("=draft-model", "gosling", "NAME=FOLDER"),
        ("draft-model", "another", "gosling's"),
    ],
)
def test_a_contender_that_is_none_is_refused(given: str, model: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_contender(given, model)


@pytest.mark.slow
def test_a_contender_is_told_by_its_files_and_not_by_their_place(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.json", "model.safetensors"):
        (moved / name).write_bytes((folder / "fresh" / name).read_bytes())
    (moved / "training.json").write_text("{}")
    given = read_contender(f"a={folder / 'fresh'}", "gosling")
    assert read_contender(f"b={moved}", "gosling").digest == given.digest
    (moved / "model.safetensors").write_bytes(b"other weights")
    assert read_contender(f"b={moved}", "gosling").digest != given.digest
    assert read_contender("draft-model", "gosling") == read_contender("draft-model=draft-model", "gosling")
