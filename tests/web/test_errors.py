"""What goes wrong is a sentence in its place; a page without an engine says what it waits for."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Route

from tests.server.servers import RunningServer
from tests.web.conftest import KEY
from tests.web.visitor import Visitor, expect

REFUSED = "status of 400"
UNKNOWN = "status of 401"
LOADING = {"status": "loading", "sentence": "measuring the machine", "fraction": 0.4, "compiling": []}
LOADING |= {"worker_pid": None, "restarts": 0, "last_error": None, "open_requests": 0}


def test_a_prompt_that_is_too_long_is_refused_in_the_servers_words(visitor: Visitor) -> None:
    visitor.expects.append(REFUSED)
    visitor.page.locator("#race-prompt").fill("word " * 5000)
    visitor.button("Race").click()
    alert = visitor.page.get_by_role("alert")
    expect(alert).to_contain_text("tokens")
    expect(alert.get_by_role("button")).to_have_count(0)
    expect(visitor.button("Race")).to_be_enabled()


def test_a_server_with_keys_asks_for_one_and_then_answers(visit: Callable[..., Visitor], locked: RunningServer) -> None:
    visitor = visit(locked, "/#completion")
    visitor.wait_until_ready()
    visitor.expects.append(UNKNOWN)
    visitor.page.locator("#completion-prompt").fill('{"say": "hello"}')
    visitor.button("Continue").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("A valid API key is needed")
    expect(visitor.page.get_by_label("API key")).to_be_focused()
    visitor.page.keyboard.type("wrong")
    visitor.button("Try again").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("A valid API key is needed")
    visitor.page.get_by_label("API key").fill(KEY)
    visitor.button("Try again").click()
    expect(visitor.page.locator("#completion .code-text")).to_have_text("hello")
    expect(visitor.page.get_by_role("alert")).to_have_count(0)


def test_a_key_is_kept_only_where_its_owner_says_so(visit: Callable[..., Visitor], locked: RunningServer) -> None:
    visitor = visit(locked)
    stores = "[localStorage.getItem('gander.key'), sessionStorage.getItem('gander.key')]"
    visitor.set("key", KEY)
    assert visitor.page.evaluate(stores) == [None, KEY]
    visitor.page.get_by_label("keep in this browser").check()
    assert visitor.page.evaluate(stores) == [KEY, None]
    visitor.page.get_by_label("keep in this browser").uncheck()
    assert visitor.page.evaluate(stores) == [None, KEY]


def test_a_model_without_a_chat_template_says_so(visit: Callable[..., Visitor], locked: RunningServer) -> None:
    visitor = visit(locked, "/#chat")
    visitor.set("key", KEY)
    visitor.wait_until_ready()
    expect(visitor.page.locator("#chat .notice")).to_contain_text("This model has no chat template")
    expect(visitor.button("Send")).to_be_disabled()


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ("", "The reply broke off"),
        ('data: {"choices": [{"index": 0, "text": "half"}]}\n\n', "The reply broke off"),
        ('data: {"error": {"message": "The worker died.", "code": "engine_error"}}\n\n', "The worker died."),
    ],
    ids=["at once", "in the middle", "told of"],
)
def test_a_stream_that_is_cut_is_told_of_and_tried_again(visitor: Visitor, frames: str, sentence: str) -> None:
    visitor.open_tab("Completion")
    visitor.page.route(
        "**/v1/completions", lambda route: route.fulfill(content_type="text/event-stream", body=frames), times=1
    )
    visitor.button("Continue").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text(sentence)
    again = visitor.page.get_by_role("alert").get_by_role("button", name="Try again")
    if "broke off" in sentence:
        again.click()
        expect(visitor.page.get_by_role("alert")).to_have_count(0)
        expect(visitor.page.locator("#completion .token").first).to_be_attached()
    else:
        expect(again).to_have_count(0)


def test_a_server_that_is_gone_is_said_to_be(visitor: Visitor) -> None:
    visitor.expects.append("ERR_FAILED")
    visitor.open_tab("Chat")
    visitor.page.route("**/v1/chat/completions", lambda route: route.abort())
    visitor.page.get_by_label("Your message").fill("Hello!")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("alert")).to_contain_text("The server does not answer")
    visitor.page.unroute("**/v1/chat/completions")
    visitor.button("Try again").click()
    expect(visitor.reply.locator(".end")).not_to_be_empty()
    expect(visitor.page.locator(".message")).to_have_count(2)


def test_a_busy_server_says_when_to_come_back(visitor: Visitor) -> None:
    visitor.expects.append("status of 503")
    error = {"error": {"message": "The engine is not ready: restarting.", "code": "engine_restarting"}}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, headers={"retry-after": "2"}, json=error)

    visitor.set("maxTokens", "40")
    visitor.page.route("**/v1/completions", refuse, times=1)
    visitor.button("Race").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("Try again in 2 s.")
    visitor.button("Try again").click()
    expect(visitor.page.locator(".verdict")).to_have_attribute("data-state", "same")


def test_a_page_waits_for_its_engine_and_wakes_by_itself(visitor: Visitor) -> None:
    visitor.page.route("**/health", lambda route: route.fulfill(body=json.dumps(LOADING)))
    visitor.page.reload()
    expect(visitor.page.locator("#engine")).to_contain_text("Loading, 40%: measuring the machine")
    expect(visitor.page.get_by_role("progressbar")).to_be_visible()
    for tab, button in (("Race", "Race"), ("Chat", "Send"), ("Completion", "Continue")):
        visitor.open_tab(tab)
        expect(visitor.button(button)).to_be_disabled()
    visitor.page.unroute("**/health")
    expect(visitor.page.locator("#engine")).to_contain_text(re.compile("gosling"))
    expect(visitor.button("Continue")).to_be_enabled()
