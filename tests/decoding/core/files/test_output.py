"""Commands write their files whole, and replace only what such a command wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from decoding.attention.triton import tiles
from decoding.attention.triton.tiles import Tile, keep_tiles
from decoding.bench.replay.rows import load_kept
from decoding.bench.tables.report import Report, write_picture, write_section
from decoding.core.files.output import MARKER, check_output, claim_folder, is_json_of, replace_file, write_output
from decoding.drafting.stand.static_tree import write_tree
from decoding.errors import ConfigError
from decoding.kernels.gpu.card import INTERPRETER
from decoding.training.first_tree import initial_tree
from server.bench.real.figures import keep
from server.cli import app
from tests.strangers_files import lost, picture, plant

NAMES = ("benchmarks.md", "benchmarks.json", "tree.json", "page.md", "picture.svg", "tiles-interpreter.json", "run")
FILES = ("config.json", "model.safetensors", "training.json")


def write_report(home: Path) -> None:
    Report(home, "a machine", "a command", "benchmarks").write("table", "a table", {"a": 1})


def write_run(home: Path) -> None:
    claim_folder(home / "run")
    for name in FILES:
        with replace_file(home / "run" / name) as file:
            file.write(b"ours")


WRITERS: tuple[Callable[[Path], object], ...] = (
    write_report,
    write_run,
    lambda home: write_tree(home / "tree.json", initial_tree()),
    lambda home: write_section(home / "page.md", "# Page\n", "auto", "a table"),
    lambda _: keep_tiles(INTERPRETER, {"a head": Tile(16, 16, 4, 2)}),
)


def write_all(home: Path) -> int:
    """How many could not be written."""
    refused = 0
    for write in WRITERS:
        try:
            write(home)
        except (ConfigError, OSError):
            refused += 1
    return refused


@pytest.mark.parametrize("num_trees", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_byte_of_a_stranger_changes(tmp_path: Path, num_trees: int, monkeypatch: pytest.MonkeyPatch) -> None:
    num_refused = 0
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number in range(num_trees):
        root, random = tmp_path / str(number), Random(number)
        home = root / "home"
        home.mkdir(parents=True)
        monkeypatch.setattr(tiles, "kernel_folder", lambda home=home: home / "gander-0")
        names = [*NAMES, *FILES, *(f"{name}.part" for name in NAMES)]
        plant(home, names, [b"# A page\n", b'{"a": 1}', b"[1]", b"{", b"<svg></svg>"], random)
        before = picture(root)
        num_refused += write_all(home)
        assert lost(before, picture(root)) == {}, number
        num_refused -= write_all(home)  # what could be written once can be again
        assert lost(before, picture(root)) == {}, number
        shutil.rmtree(root)
    assert num_refused == 0


def test_what_a_command_wrote_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "kernel_folder", lambda: tmp_path / "gander-0")
    for _ in range(2):
        assert write_all(tmp_path) == 0
        write_picture(tmp_path / "picture.svg", Figure())
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.parametrize("number", range(len(WRITERS)))
def test_each_writer_refuses_a_strangers_file(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "kernel_folder", lambda: tmp_path / "gander-0")
    (tmp_path / "run").mkdir()
    for name in (*NAMES[:-1], *(f"run/{name}" for name in FILES)):
        (tmp_path / name).write_bytes(b"a stranger's")
    before = picture(tmp_path)
    with pytest.raises(ConfigError, match=r"no such command wrote"):
        WRITERS[number](tmp_path)
    assert picture(tmp_path) == before


def test_pictures_and_runs_that_are_not_ours_stay(tmp_path: Path) -> None:
    drawn, runs = tmp_path / "picture.svg", tmp_path / "runs.json"
    drawn.write_text("<svg></svg>")
    runs.write_text('{"years": "of work"}')
    with pytest.raises(ConfigError, match=r"picture\.svg is there"):
        write_picture(drawn, Figure())
    with pytest.raises(ConfigError, match=r"runs\.json is there"):
        load_kept(runs, None, "a machine")  # type: ignore[arg-type]
    with contextlib.suppress(ValueError):
        keep(runs, None)  # type: ignore[arg-type]
    assert runs.read_text() == '{"years": "of work"}'


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), replace_file(path) as file:
        file.writelines([b"after", "no bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    link = tmp_path / "link"
    link.symlink_to(path)
    for strange in (link, tmp_path):
        with pytest.raises(FileExistsError), replace_file(strange):
            pass
        with pytest.raises(ConfigError, match="name another place"):
            check_output(strange, lambda _: True)
    with pytest.raises(ConfigError, match="below cannot be written"):
        write_output(path / "below", b"after", lambda _: True)


def test_an_empty_list_is_no_proof_that_a_file_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    for content in (b"[]", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            write_output(path, b"[1]", is_json_of(list[int]))
        assert path.read_bytes() == content
    path.write_bytes(b"")  # as a disk that was full leaves one
    write_output(path, b"[1]", is_json_of(list[int]))
    write_output(path, b"[2]", is_json_of(list[int]))


def test_a_folder_is_claimed_once_and_a_strangers_by_hand(tmp_path: Path) -> None:
    claim_folder(tmp_path / "new")
    (tmp_path / "new" / "model").touch()
    claim_folder(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model").touch()
    with pytest.raises(ConfigError, match=rf"holds model, which .* an empty file {MARKER} in it"):
        claim_folder(tmp_path / "old")
    (tmp_path / "old" / MARKER).touch()
    claim_folder(tmp_path / "old")


def test_commands_refuse_a_strangers_file_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text("a stranger's")
    ended = CliRunner().invoke(app, ["tune-tree", "--out", str(path)])
    assert ended.exit_code == 2
    assert ended.output == f"Error: {path} is there, and no such command wrote it: it stays, name another place\n"
    assert path.read_text() == "a stranger's"
