"""Chat: markdown that is safe, colours that are the trace's, and a history that stays in the browser."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.web.visitor import Visitor, expect

STORY = "Tell me a story about a bear."


@pytest.fixture
def talker(visitor: Visitor) -> Visitor:
    visitor.open_tab("Chat")
    return visitor


def chunk(delta: dict[str, str], tokens: list[dict[str, Any]], finish: str | None = None) -> str:
    steps = [{"step": 1, "method": "spine", "drafted": 2, "accepted": 1, "seconds": 0.01, "plain_seconds": 0.02}]
    trace = {"tokens": tokens, "steps": [{**step, "prefill_rows": 0} for step in steps if not finish]}
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "trace": trace}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def answer_with(talker: Visitor, *texts: str, reasoning: str = "") -> None:
    """The next replies are `texts`, one token each, whatever is asked."""
    sources = ["bonus", "context", "draft_model"]
    tokens = [
        {"text": text, "id": index, "source": sources[index % 3], "depth": 1, "step": 1, "logprob": -0.1}
        for index, text in enumerate(texts)
    ]
    frames = chunk({"reasoning_content": reasoning}, []) if reasoning else ""
    frames += "".join(chunk({"content": token["text"]}, [token]) for token in tokens) + chunk({}, [], "stop")

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=frames + "data: [DONE]\n\n")

    talker.page.route("**/v1/chat/completions", fulfil)


def test_a_reply_is_markdown_in_the_colours_of_its_trace(talker: Visitor) -> None:
    talker.keep_replies()
    talker.say(STORY)
    traced = talker.traced_tokens()
    shown = talker.shown_tokens(".message.assistant")
    assert talker.reply.locator(".markdown > p").count() >= 1
    assert len(shown) > 50
    for text, source, index in shown:
        assert text in traced[index]["text"]
        assert source == traced[index]["source"]
    written = "".join(token["text"] for token in traced)
    assert "".join(text for text, _, _ in shown) == written.strip()


def test_a_reply_grows_while_it_streams(talker: Visitor) -> None:
    """Undrafted, since a drafted reply can be over before the page, which draws with pauses, has drawn three times."""
    talker.set("maxTokens", "400")
    talker.page.locator("#settings [name=method]").select_option("none")
    talker.page.evaluate("""() => {
      window.lengths = new Set();
      const place = document.querySelector(".messages");
      const note = () => window.lengths.add(place.querySelector(".markdown")?.textContent.length ?? 0);
      new MutationObserver(note).observe(place, {childList: true, subtree: true});
    }""")
    talker.say(STORY)
    assert len(talker.page.evaluate("[...window.lengths]")) >= 3


def test_marks_become_markup_and_every_piece_keeps_its_colour(talker: Visitor) -> None:
    answer_with(talker, "## Two", " things\n\n", "1. **fast** and\n", "2. `same`\n\n", "```python\nx = 1\n", "```")
    talker.say("?")
    reply = talker.reply.locator(".markdown")
    expect(reply.locator("h2")).to_have_text("Two things")
    expect(reply.locator("ol li strong .token")).to_have_attribute("data-source", "draft_model")
    expect(reply.locator("ol li code .token")).to_have_text("same")
    expect(reply.locator("pre code .token")).to_have_attribute("data-token", "4")


def test_what_a_model_writes_cannot_run(talker: Visitor) -> None:
    """No element, script, style, picture or address of the model's own comes to life."""
    evil = [
        '<img src=x onerror="window.caught = 1">',
        "\n\n<script>window.caught = 2</script>\n\n",
        "[here](javascript:window.caught=3) ",
        "![x](https://example.com/a.png) ",
        '<b style="color:red" onclick="window.caught=4">bold</b>',
        "\n\n<svg/onload=window.caught=5><iframe src=/></iframe>",
        " [good](https://example.com/)",
    ]
    answer_with(talker, *evil)
    talker.say("?")
    reply = talker.reply.locator(".markdown")
    assert talker.page.evaluate("window.caught") is None
    for selector in ("img", "script", "svg", "iframe", "b", "[style]", "[onclick]", 'a[href^="javascript"]'):
        assert reply.locator(selector).count() == 0, selector
    expect(reply).to_contain_text('<img src=x onerror="window.caught = 1">')
    link = reply.get_by_role("link", name="good")
    expect(link).to_have_attribute("rel", re.compile("noopener"))


def test_reasoning_is_folded_away(talker: Visitor) -> None:
    answer_with(talker, "Four.", reasoning="Two and two.")
    talker.say("2+2?")
    hidden = talker.reply.get_by_text("Two and two.")
    expect(hidden).to_be_hidden()
    talker.reply.get_by_text("Reasoning", exact=True).click()
    expect(hidden).to_be_visible()
    expect(talker.reply.locator(".markdown")).to_have_text("Four.")


def test_the_switch_turns_colours_off_and_is_remembered(talker: Visitor) -> None:
    answer_with(talker, "own ", "copied ", "drafted")
    talker.say("?")
    colour = "span => getComputedStyle(span).backgroundColor"
    copied = talker.reply.locator('.token[data-source="context"]')
    assert copied.evaluate(colour) != "rgba(0, 0, 0, 0)"
    talker.page.locator("#chat").get_by_label("Sources").uncheck()
    assert copied.evaluate(colour) == "rgba(0, 0, 0, 0)"
    talker.page.reload()
    expect(talker.page.locator("#chat").get_by_label("Sources")).not_to_be_checked()


def test_pointing_at_the_legend_dims_the_other_sources(talker: Visitor) -> None:
    answer_with(talker, "own ", "copied ", "drafted")
    talker.say("?")
    talker.page.locator('#chat .legend li[data-source="context"] button').click()
    opacities = talker.reply.locator(".token").evaluate_all("all => all.map(one => +getComputedStyle(one).opacity)")
    assert opacities[1] == 1 > max(opacities[0], opacities[2])


def test_a_conversation_goes_on_after_a_reload(talker: Visitor) -> None:
    talker.say("Hello!")
    first = talker.reply.locator(".markdown").inner_text()
    shown = talker.shown_tokens(".message.assistant")
    talker.page.reload()
    talker.wait_until_ready()
    expect(talker.page.locator(".message.user")).to_have_text("Hello!")
    assert talker.reply.locator(".markdown").inner_text() == first
    assert talker.shown_tokens(".message.assistant") == shown
    talker.say("Who are you?")
    roles = [(each["role"], each["content"]) for each in talker.body()["messages"]]
    assert roles[0] == ("user", "Hello!")
    assert roles[1][0] == "assistant"
    assert roles[2] == ("user", "Who are you?")
    assert talker.body()["session_id"] == talker.body(0)["session_id"]


def test_conversations_are_renamed_deleted_and_taken_away(talker: Visitor) -> None:
    page = talker.page
    answer_with(talker, "Yes.")
    talker.say("First")
    talker.button("New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    talker.say("Second")
    listed = page.get_by_role("list", name="Conversations").locator(".title")
    expect(listed).to_have_text(["Second", "First"])
    page.get_by_role("button", name="Rename First").click()
    page.get_by_label("New name").fill("Geese")
    page.keyboard.press("Enter")
    expect(listed).to_have_text(["Second", "Geese"])
    with page.expect_download() as waiting:
        talker.button("Export").click()
    kept = json.loads(waiting.value.path().read_text())["conversations"]
    assert [each["title"] for each in kept] == ["Second", "Geese"]
    assert [message["content"] for message in kept[0]["messages"]] == ["Second", "Yes."]
    page.get_by_role("button", name="Delete Geese").click()
    expect(listed).to_have_count(2)
    page.get_by_role("button", name="Really delete?").click()
    expect(listed).to_have_text(["Second"])
    page.reload()
    expect(listed).to_have_text(["Second"])
