"""A server with several models on the page, and a race that waits for what it needs."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until
from tests.web.visitor import Visitor, expect

SAY = '{"say": "hello"}'


def settings_of(tmp_path: Path, name: str, **fake: object) -> ServerSettings:
    return ServerSettings(model=str(make_model_folder(tmp_path / name, **fake)), drain_seconds=2, standby=False)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RunningServer]:
    models = [settings_of(tmp_path, name) for name in ("alpha", "beta")]
    with running_server(models[0], models=models) as server:
        yield server


def test_a_model_is_picked_loaded_and_unloaded(visit: Callable[..., Visitor], pair: RunningServer) -> None:
    visitor = visit(pair, "/#completion")
    picker = visitor.page.get_by_role("combobox", name="Model")
    expect(picker).to_have_value("alpha")
    expect(picker.locator("option")).to_have_text(["alpha (absent)", "beta (absent)"])
    picker.select_option("beta")
    expect(visitor.page.locator("#engine")).to_contain_text("beta · not loaded")
    visitor.button("Load").click()
    expect(visitor.page.locator("#engine")).to_contain_text("beta · float32 on cpu")
    told = re.compile(r"Takes 3\.0 GiB once its cache is full\. The machine has \d+\.\d GiB free\.")
    expect(visitor.page.locator("#models")).to_have_attribute("title", told)
    visitor.page.locator("#completion-prompt").fill(SAY)
    visitor.button("Continue").click()
    expect(visitor.page.locator("#completion .code-text")).to_have_text("hello")
    assert visitor.body()["model"] == "beta"
    visitor.button("Unload").click()
    expect(picker.locator("option")).to_have_text(["alpha (absent)", "beta (absent)"])


def test_a_reply_of_a_model_that_is_absent_loads_it(visit: Callable[..., Visitor], pair: RunningServer) -> None:
    visitor = visit(pair, "/#completion")
    visitor.page.locator("#completion-prompt").fill(SAY)
    visitor.button("Continue").click()
    expect(visitor.page.locator("#completion .code-text")).to_have_text("hello")
    assert "model" not in visitor.body()
    visitor.wait_until_ready()


def test_a_race_waits_until_its_model_is_loaded_and_drafts(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    models = [
        settings_of(tmp_path, "alpha", load_gate=str(gate), compiling=["auto", "spine"]),
        settings_of(tmp_path, "beta"),
    ]
    with running_server(models[0], models=models) as server:
        visitor = visit(server)
        verdict = visitor.page.locator(".verdict")
        visitor.button("Race").click()
        expect(verdict).to_contain_text("Waiting to start")
        expect(verdict).to_contain_text("Loading")
        gate.touch()
        expect(verdict).to_contain_text("Compiling what auto drafts with")
        expect(verdict.get_by_role("progressbar")).to_be_visible()
        assert not visitor.asked
        server.post(prompt="a", max_tokens=1)  # after which the scripted worker has compiled everything
        wait_until(lambda: not server.http.get("/health", params={"model": "alpha"}).json()["compiling"])
        expect(verdict).to_have_attribute("data-state", "same")
        assert [visitor.body(number)["speculation"]["method"] for number in (0, 1)] == ["none", "auto"]


def test_a_race_that_waits_can_be_stopped(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    models = [settings_of(tmp_path, "alpha", load_gate=str(tmp_path / "gate")), settings_of(tmp_path, "beta")]
    with running_server(models[0], models=models) as server:
        visitor = visit(server)
        visitor.button("Race").click()
        expect(visitor.page.locator(".verdict")).to_contain_text("Waiting to start")
        visitor.button("Stop").click()
        expect(visitor.page.locator(".verdict")).to_contain_text("Stopped")
        (tmp_path / "gate").touch()
        expect(visitor.button("Race")).to_be_enabled()
