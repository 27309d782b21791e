"""Models by name, from a hub on this machine: what is brought, kept, gone on with, listed, shown, removed, refused."""

import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from decoding.errors import ConfigError
from decoding.model.files.gguf_place import gguf_paths, projector_of
from decoding.model.files.hub_cache import HubName, choose_gguf, choose_projector, hub_name, quantization_of
from server.cli import app
from server.library.commands import pull_before_serving
from server.library.hub import HubUnreachable, NotOnHub, look_up, needed_files
from server.library.installed import installed_models, is_installed, remove
from server.library.pull import Progress, in_units, pull
from server.prompts.model_check import check_model
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.local_hub import LocalHub, local_hub, use_hub
from tests.models import tiny
from tests.server.servers import wait_until

RANDOM = random.Random(0)
BIG = RANDOM.randbytes(3_000_000)
GGUF = {
    "README.md": b"#",
    "tiny-q4_k_m.gguf": BIG,
    "tiny-q8_0-00001-of-00002.gguf": b"1" * 2000,
    "tiny-q8_0-00002-of-00002.gguf": b"2" * 3000,
    "mmproj-tiny-f16.gguf": b"m" * 1000,
}
SAFE = {
    "config.json": b'{"model_type": "llama", "max_position_embeddings": 512}',
    "tokenizer.json": b"{}" * 700,
    "model.safetensors": b"w" * 5000,
    "consolidated.safetensors": b"w" * 5000,
    "pytorch_model.bin": b"pickle" * 1000,
    "original/model.safetensors": b"w" * 5000,
    "modeling.py": b"import os",
}
REPOS = {
    "org/tiny-GGUF": GGUF,
    "org/safe": SAFE,
    "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle" * 1000},
    "org/several": {"a-q5_0.gguf": b"a" * 1000, "a-q6_k.gguf": b"b" * 1000},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub(REPOS) as running:
        use_hub(monkeypatch, running.url, tmp_path / "cache")
        yield running


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    return " ".join(result.output.split())


def names() -> list[str]:
    return sorted(map(str, installed_models()))


@pytest.mark.parametrize(
    ("file", "quantization"),
    [
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct-Q8_0.gguf", "Q8_0"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("BF16/model-BF16-00001-of-00003.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("F16/ggml.gguf", "F16/ggml"),
        ("Qwen3-Q.gguf", "Qwen3-Q"),
    ],
)
def test_a_files_name_says_its_quantisation(file: str, quantization: str) -> None:
    assert quantization_of(file) == quantization


def test_names_of_the_hub_may_have_a_quantisation() -> None:
    assert hub_name("org/model") == HubName("org/model")
    assert hub_name("org/model:q4_k_m") == HubName("org/model", "Q4_K_M")
    for text in ("", "a b", "org/model:", "org/a/b", "/org/model", ":Q4_0"):
        assert hub_name(text) is None


def test_one_quantisation_is_needed_or_safetensors_with_the_small_files() -> None:
    files = list(GGUF)
    assert needed_files(files, HubName("r")) == ("mmproj-tiny-f16.gguf", "tiny-q4_k_m.gguf")
    assert needed_files(files, HubName("r", "Q8_0")) == (
        "mmproj-tiny-f16.gguf",
        "tiny-q8_0-00001-of-00002.gguf",
        "tiny-q8_0-00002-of-00002.gguf",
    )
    assert needed_files(list(SAFE), HubName("r")) == ("config.json", "tokenizer.json", "model.safetensors")
    both = [f"q4_k_m{part}.gguf" for part in ("-00001-of-00002", "-00002-of-00002", "")]
    assert choose_gguf([*both, "q8_0.gguf"], HubName("r")) == ("q4_k_m.gguf",), "it is there whole, too"
    with pytest.raises(ConfigError, match="r has no quantisation Q8_0: it has a-q8_0, b-q8_0"):
        choose_gguf(["a-q8_0.gguf", "b-q8_0.gguf"], HubName("r", "Q8_0"))
    assert choose_gguf(["a.gguf"], HubName("r")) == ("a.gguf",)
    assert choose_gguf(["config.json", "m.safetensors", "m-q8_0.gguf"], HubName("r")) == ()
    assert choose_gguf(["config.json", "m.safetensors", "m-q8_0.gguf"], HubName("r", "Q8_0")) == ("m-q8_0.gguf",)


def test_a_projector_is_needed_with_each_quantisation() -> None:
    """Of several precisions one, and none where it cannot be told which."""
    kinds = ["m-q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
    assert needed_files(kinds, HubName("r")) == ("mmproj-F16.gguf", "m-q8_0.gguf")
    assert choose_projector(["big/m-q8_0.gguf", "mmproj-x.gguf"], "big/m-q8_0.gguf") == "mmproj-x.gguf"
    assert choose_projector(["big/m.gguf", "big/m-mmproj.gguf", "mmproj.gguf"], "big/m.gguf") == "big/m-mmproj.gguf"
    assert choose_projector(["m.gguf", "other/mmproj.gguf"], "m.gguf") is None
    several = ["m-q8_0.gguf", "mmproj-a-f16.gguf", "mmproj-b-f16.gguf"]
    assert needed_files(several, HubName("r")) == ("m-q8_0.gguf",)
    with pytest.raises(
        ConfigError, match=r"several projectors \(mmproj\) are beside .*: mmproj-a-f16.gguf, mmproj-b-f16"
    ):
        choose_projector(several, "m-q8_0.gguf")


def test_a_pull_brings_what_is_needed_and_no_more(hub: LocalHub, tmp_path: Path) -> None:
    told: list[Progress] = []
    pull(look_up("org/tiny-GGUF"), told.append)
    projector, total = "mmproj-tiny-f16.gguf", len(BIG) + 1000
    assert hub.fetched == [(projector, 0), ("tiny-q4_k_m.gguf", 0)]
    assert told[-1] == Progress("tiny-q4_k_m.gguf", total, total)
    assert [each.done for each in told] == sorted(each.done for each in told)
    (path,) = gguf_paths("org/tiny-GGUF", None, None)
    assert path.read_bytes() == BIG
    assert gguf_paths("org/tiny-GGUF:q4_k_m", None, None) == (path,)
    assert projector_of((path,), None) == path.with_name(projector)
    pull(look_up("org/tiny-GGUF:Q8_0"))
    assert [each.name for each in gguf_paths("org/tiny-GGUF:Q8_0", None, None)] == list(GGUF)[2:4]
    pull(look_up("org/safe"))
    fetched = len(hub.fetched)
    assert {name for name, _ in hub.fetched[4:]} == {"config.json", "tokenizer.json", "model.safetensors"}
    pull(look_up("org/safe"))
    assert len(hub.fetched) == fetched, "what is there is not fetched again"
    assert names() == ["org/safe", "org/tiny-GGUF:Q4_K_M", "org/tiny-GGUF:Q8_0"]
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_without_a_network_the_cache_works_and_what_is_not_there_is_said(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(look_up("org/safe"))
    pull(look_up("org/tiny-GGUF:Q8_0"))
    hub.status = 500
    assert is_installed("org/safe")
    assert is_installed("org/tiny-GGUF:Q8_0")
    assert is_installed("org/tiny-GGUF"), "the only one there is"
    assert not is_installed("org/tiny-GGUF:Q4_K_M")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    check_model("org/safe", None)
    assert os.environ.pop("HF_HUB_OFFLINE") == "1"
    with pytest.raises(HubUnreachable, match="the hub cannot be reached to look for org/tiny-GGUF: "):
        look_up("org/tiny-GGUF:Q4_K_M")
    with pytest.raises(ConfigError, match="org/tiny-GGUF:Q4_K_M is not in the hub's cache: gander pull org/tiny-GGUF"):
        check_model("org/tiny-GGUF:q4_k_m", None)


def test_a_pull_that_breaks_off_says_so_and_the_next_goes_on(hub: LocalHub) -> None:
    hub.breaks["tiny-q4_k_m.gguf"] = 1_200_000
    said = refusal("pull", "org/tiny-GGUF")
    assert said.startswith("Error: the pull of org/tiny-GGUF broke off at ")
    assert "of 3.0 MB, and another one goes on from there: " in said
    assert not is_installed("org/tiny-GGUF")
    hub.breaks.clear()
    result = CliRunner().invoke(app, ["pull", "org/tiny-GGUF"])
    assert (result.exit_code, result.output) == (0, "org/tiny-GGUF is here: 3.0 MB in 2 files.\n")
    _, (_, first), (_, second) = hub.fetched
    assert first == 0
    assert 0 < second <= 1_200_000
    assert gguf_paths("org/tiny-GGUF", None, None)[0].read_bytes() == BIG


def test_a_hub_that_knows_no_ranges_sends_the_whole_file_again(hub: LocalHub) -> None:
    hub.breaks["tiny-q4_k_m.gguf"] = 1_200_000
    with pytest.raises(ConfigError, match="broke off"):
        pull(look_up("org/tiny-GGUF"))
    hub.breaks.clear()
    hub.has_ranges = False
    pull(look_up("org/tiny-GGUF"))
    assert gguf_paths("org/tiny-GGUF", None, None)[0].read_bytes() == BIG


def test_a_killed_pull_is_gone_on_with(hub: LocalHub, tmp_path: Path) -> None:
    hub.breaks["tiny-q4_k_m.gguf"] = 2 * 2**20
    hub.is_stuck = True
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "from server.cli import main; main()", "pull", "org/tiny-GGUF"]
    process = subprocess.Popen(command, env=os.environ | variables)
    partial = tmp_path / "cache/models--org--tiny-GGUF/blobs" / f"{hashlib.sha256(BIG).hexdigest()}.gander.incomplete"
    try:
        wait_until(lambda: partial.exists() and partial.stat().st_size >= 2**20)
        with pytest.raises(ConfigError, match=r"another process is pulling tiny-q4_k_m\.gguf of org/tiny-GGUF"):
            pull(look_up("org/tiny-GGUF"))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not is_installed("org/tiny-GGUF")
    kept = partial.stat().st_size
    hub.breaks.clear()
    hub.go_on.set()
    pull(look_up("org/tiny-GGUF"))
    assert hub.fetched[-1] == ("tiny-q4_k_m.gguf", kept)
    assert gguf_paths("org/tiny-GGUF", None, None)[0].read_bytes() == BIG


def test_a_damaged_file_is_no_model(hub: LocalHub, tmp_path: Path) -> None:
    hub.false_hashes.add("tiny-q4_k_m.gguf")
    with pytest.raises(ConfigError, match=r"tiny-q4_k_m\.gguf of org/tiny-GGUF came damaged, and was removed"):
        pull(look_up("org/tiny-GGUF"))
    assert installed_models() == []
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_a_model_larger_than_the_disk_is_refused_before(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match=r"org/tiny-GGUF needs 3\.0 MB more, and 1\.0 MB are free in "):
        pull(look_up("org/tiny-GGUF"))
    assert hub.fetched == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/tiny-GGUF:Q3_K", "org/tiny-GGUF has no quantisation Q3_K: it has Q4_K_M, Q8_0"),
        ("org/safe:Q8_0", "org/safe has no quantisation Q8_0: it has no GGUF file"),
        ("org/several", "org/several has several quantisations: choose one, as org/several:NAME, of Q5_0, Q6_K"),
        ("org/pickled", "org/pickled cannot be served: its weights are pickles, which run code as they are read"),
        ("org/nothing", "org/nothing is not to be found: the hub has no model of this name; a private one needs HF"),
        ("two words", "two words is no name on the hub, such as org/model or org/model:Q4_K_M"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_cannot_be_pulled_is_said(name: str, said: str) -> None:
    assert refusal("pull", name).startswith(f"Error: {said}")


@pytest.mark.usefixtures("hub")
def test_models_are_listed_shown_and_removed(tmp_path: Path) -> None:
    assert "no model in the hub's cache" in CliRunner().invoke(app, ["list"]).output
    for name in ("org/tiny-GGUF", "org/tiny-GGUF:Q8_0", "org/safe"):
        pull(look_up(name))
    lines = CliRunner().invoke(app, ["list"]).output.splitlines()
    assert sorted(line.split()[0] for line in lines) == names()
    assert any(line.split()[:3] == ["org/tiny-GGUF:Q8_0", "5.0", "kB"] for line in lines)
    shown = CliRunner().invoke(app, ["show", "org/safe"]).output
    assert shown.splitlines()[:4] == [
        "name            org/safe",
        "format          safetensors",
        "bytes           5.0 kB",
        "architecture    llama",
    ]
    assert "context length  512" in shown
    assert refusal("rm", "org/tiny-GGUF:Q2_K").startswith("Error: org/tiny-GGUF:Q2_K is not here: here is org/tiny")
    assert refusal("show", "org/nothing") == "Error: org/nothing is not here: gander list names what is"
    result = CliRunner().invoke(app, ["rm", "org/tiny-GGUF:Q8_0"])
    assert result.output == "org/tiny-GGUF:Q8_0 is removed: 5.0 kB are free again.\n"
    assert names() == ["org/safe", "org/tiny-GGUF:Q4_K_M"]
    assert remove("org/tiny-GGUF") == len(BIG) + len(GGUF["mmproj-tiny-f16.gguf"])
    assert names() == ["org/safe"]
    assert not (tmp_path / "cache/models--org--tiny-GGUF").exists()


def test_revisions_are_models_of_their_own(hub: LocalHub, tmp_path: Path) -> None:
    pull(look_up("org/safe", "v1"))
    assert names() == ["org/safe --revision v1"]
    assert refusal("show", "org/safe") == "Error: org/safe is not here: gander list names what is"
    hub.commit = "b" * 40
    pull(look_up("org/safe"))
    assert names() == ["org/safe", "org/safe --revision v1"]
    assert "llama" in CliRunner().invoke(app, ["show", "org/safe", "--revision", "v1"]).output
    result = CliRunner().invoke(app, ["rm", "org/safe", "--revision", "v1"])
    assert result.output == "org/safe --revision v1 is removed: 0 bytes are free again.\n"
    assert names() == ["org/safe"]
    assert remove("org/safe") > len(SAFE["model.safetensors"])
    assert not (tmp_path / "cache/models--org--safe").exists()


def test_a_pulled_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_gguf(tmp_path / "tiny.gguf", tiny("llama", vocab_size=VOCAB_SIZE)).read_bytes()
    with local_hub({"org/real-GGUF": {"real-f32.gguf": content}}) as running:
        use_hub(monkeypatch, running.url, tmp_path / "cache")
        assert refusal_of("org/real-GGUF") == (
            "the model org/real-GGUF on the hub is a GGUF file: gander pull org/real-GGUF brings it"
        )
        pull(look_up("org/real-GGUF"))
        running.status = 500
        for name in ("org/real-GGUF", "org/real-GGUF:F32"):
            assert refusal_of(name) is None
        shown = CliRunner().invoke(app, ["show", "org/real-GGUF"]).output
    assert "architecture    llama" in shown
    assert "quantization    F32" in shown


def refusal_of(name: str) -> str | None:
    try:
        check_model(name, None)
    except ConfigError as error:
        return str(error)
    return None


def test_serve_asks_before_it_pulls(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(text: str) -> None:
        monkeypatch.setattr("rich.prompt.Confirm.ask", lambda question, **_: asked.append(question) or text == "y")

    console = Console(file=io.StringIO())
    answer("n")
    with pytest.raises(ConfigError, match="org/tiny-GGUF:Q8_0 is not here, and was not pulled"):
        pull_before_serving("org/tiny-GGUF:Q8_0", None, False, True, console)
    answer("y")
    pull_before_serving("org/tiny-GGUF:Q8_0", None, False, True, console)
    assert asked == 2 * ["org/tiny-GGUF:Q8_0 is not here. Pull 6.0 kB from the hub?"]
    for name in ("gosling", str(tmp_path), "./nothing", "org/tiny-GGUF:Q8_0"):
        pull_before_serving(name, None, False, True, console)
    pull_before_serving("org/tiny-GGUF:Q4_K_M", None, True, True, console)
    pull_before_serving("org/safe", None, False, False, console)  # is the worker's
    pull_before_serving("org/pickled", None, False, True, console)  # is refused, or loaded, by the start
    assert len(asked) == 2
    assert names() == ["org/tiny-GGUF:Q4_K_M", "org/tiny-GGUF:Q8_0"]
    with pytest.raises(ConfigError, match="has no quantisation Q2_K: it has Q4_K_M, Q8_0"):
        pull_before_serving("org/tiny-GGUF:Q2_K", None, True, True, console)
    hub.status = 500
    pull_before_serving("org/safe", None, False, True, console)


def test_a_private_model_is_not_on_the_hub(hub: LocalHub) -> None:
    with pytest.raises(NotOnHub):
        look_up("org/private")
    assert hub.fetched == []


def test_bytes_are_written_as_people_do() -> None:
    assert [in_units(number) for number in (9, 1500, 2_500_000, 4_700_000_000)] == [
        "9 bytes",
        "1.5 kB",
        "2.5 MB",
        "4.7 GB",
    ]
