"""The race: what a visitor sees first. Its verdict must be true, and shown for both verdicts."""

import json
import re

from playwright.sync_api import Route

from tests.server.servers import RunningServer, wait_until
from tests.web.visitor import Visitor, expect

DRAFTED = {"context", "adjacency", "ngram", "draft_model"}


def race(visitor: Visitor) -> None:
    visitor.button("Race").click()
    expect(visitor.page.locator(".verdict")).to_have_attribute("data-state", re.compile("same|different"))


def test_race_comes_first_and_ends_equal(visitor: Visitor, real: RunningServer) -> None:
    page = visitor.page
    expect(page.get_by_role("tab", name="Race")).to_have_attribute("aria-selected", "true")
    visitor.set("maxNodes", "16")  # drafted whatever a node costs on this machine just now
    race(visitor)
    expect(page.locator(".verdict strong")).to_contain_text("Same text")
    plain, drafted = (visitor.shown_tokens(f'[data-lane="{lane}"]') for lane in ("plain", "drafted"))
    assert [text for text, _, _ in plain] == [text for text, _, _ in drafted]
    assert len(plain) > 100
    assert {source for _, source, _ in plain} == {"bonus"}
    assert {source for _, source, _ in drafted} & DRAFTED
    assert [visitor.body(number)["speculation"]["method"] for number in (0, 1)] == ["none", "auto"]
    assert visitor.body(0)["session_id"] != visitor.body(1)["session_id"]
    assert visitor.body(0)["seed"] == visitor.body(1)["seed"]
    ours = {visitor.body(number)["session_id"] for number in (0, 1)}
    wait_until(lambda: not ours & {card["id"] for card in real.get("/v1/sessions").json()["data"]})


def test_after_a_race_both_lanes_show_the_same_place(visitor: Visitor) -> None:
    visitor.set("maxNodes", "16")
    race(visitor)
    expect(visitor.page.locator('[data-lane="drafted"] .token.of-step').first).to_be_visible()
    top = "() => [...document.querySelectorAll('.lane .code-text')].map((each) => Math.round(each.scrollTop))"
    wait_until(lambda: len(set(visitor.page.evaluate(top))) == 1)
    visitor.page.locator('[data-lane="plain"] .code-text').evaluate("(each) => each.scrollTo(0, 20)")
    wait_until(lambda: visitor.page.evaluate(top) == [20, 20])


def test_a_chat_races_too_and_can_be_replayed(visitor: Visitor) -> None:
    page = visitor.page
    visitor.set("maxTokens", "40")
    page.get_by_role("button", name="A story").click()
    expect(page.get_by_label("answer it in chat")).to_be_checked()
    race(visitor)
    assert all(request.url.endswith("/v1/chat/completions") for request in visitor.asked)
    texts = [page.locator(f'[data-lane="{lane}"] .code-text').inner_text() for lane in ("plain", "drafted")]
    visitor.button("Replay").click()
    expect(page.locator('[data-lane="plain"]')).to_have_attribute("data-state", "running")
    expect(visitor.button("Replay")).to_be_visible()
    assert texts == [page.locator(f'[data-lane="{lane}"] .code-text').inner_text() for lane in ("plain", "drafted")]
    assert len(visitor.asked) == 2, "a replay asks nothing of the server"


def test_texts_that_differ_are_said_to_differ_and_where(visitor: Visitor) -> None:
    """The second reply is of another seed, as if drafting had changed the text."""

    def reseed(route: Route) -> None:
        body = route.request.post_data_json
        seed = 7 if body["speculation"]["method"] == "none" else 8
        route.continue_(post_data=json.dumps({**body, "seed": seed}))

    visitor.set("temperature", "1")
    visitor.set("maxTokens", "24")
    visitor.page.route("**/v1/completions", reseed)
    race(visitor)
    expect(visitor.page.locator(".verdict strong")).to_have_text("The texts differ")
    expect(visitor.page.locator(".verdict p")).to_contain_text(
        re.compile(r"From token \d+ on plain has \".*\", drafted")
    )


def test_a_step_can_be_chosen_and_its_tree_seen_and_heard(visitor: Visitor) -> None:
    page = visitor.page
    visitor.keep_replies()
    visitor.set("maxNodes", "16")
    race(visitor)
    strip = page.get_by_role("slider", name="Step")
    strip.focus()
    page.keyboard.press("Home")
    expect(strip).to_have_attribute("aria-valuenow", "1")
    steps = int(strip.get_attribute("aria-valuemax") or 0)
    for _ in range(steps):
        page.keyboard.press("ArrowRight")
        if (
            page.locator("#race .tree .node.rejected").count()
            and page.locator("#race .tree .node.accepted").count() > 2
        ):
            break
    chosen = strip.get_attribute("aria-valuenow")
    expect(page.locator("#race .tree-heading")).to_contain_text(f"Step {chosen}, ")
    nodes = page.locator("#race .tree .node").count()
    assert page.locator("#race .tree .edge").count() == nodes - 1
    expect(page.locator("#race .tree-scroll .only-read li")).to_have_count(nodes)
    marked = page.locator('[data-lane="drafted"] .token.of-step').all_inner_texts()
    traced = [token["text"] for token in visitor.traced_tokens() if str(token["step"]) == chosen and token["text"]]
    assert len(marked) == len(traced) > 1
