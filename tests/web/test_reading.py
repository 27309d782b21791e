"""A bar shows how much of a long prompt has been read, until the reply begins or is stopped."""

import json
import re
from collections.abc import Callable, Iterator

import pytest

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server
from tests.web.visitor import Visitor, expect

LASTING = json.dumps({"progress": [700] * 500, "delay": 0.05})  # a prompt of at least twice 700 tokens
SHORT = json.dumps({"progress": [700] * 60, "delay": 0.05, "say": "done"})


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as server:
        yield server


def test_the_bar_of_a_completion_goes_when_it_is_stopped(
    visit: Callable[..., Visitor], scripted: RunningServer
) -> None:
    visitor = visit(scripted, "/#completion")
    visitor.wait_until_ready()
    visitor.page.locator("#completion-prompt").fill(LASTING)
    bar = visitor.page.locator("#completion progress")
    expect(bar).to_be_hidden()
    visitor.button("Continue").click()
    expect(bar).to_be_visible()
    assert 0 < float(bar.evaluate("bar => bar.value")) < 0.5
    visitor.button("Stop").click()
    expect(bar).to_be_hidden()


def test_the_bar_of_a_chat_goes_when_the_reply_begins(visit: Callable[..., Visitor], scripted: RunningServer) -> None:
    visitor = visit(scripted, "/#chat")
    visitor.wait_until_ready()
    visitor.page.get_by_label("Your message").fill(SHORT)
    visitor.page.keyboard.press("Enter")
    bar = visitor.reply.get_by_role("progressbar", name="How much has been read")
    expect(bar).to_be_visible()
    expect(bar).to_have_attribute("value", re.compile("."))
    expect(visitor.reply.locator(".markdown")).to_have_text("done")
    expect(visitor.reply.locator("progress")).to_be_hidden()
