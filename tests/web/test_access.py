"""The keyboard alone, a phone, and people who do not see: the page is theirs too."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.servers import RunningServer
from tests.web.visitor import Visitor, expect

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, a, [tabindex]")]
  .filter(one => one.checkVisibility() && !(one.ariaLabel || one.textContent.trim() || one.labels?.length
    || one.getAttribute("aria-labelledby"))).map(one => one.outerHTML)"""


def test_everything_goes_by_the_keyboard(visitor: Visitor) -> None:
    page = visitor.page
    visitor.set("maxTokens", "40")
    page.get_by_role("tab", name="Race").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Chat")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_role("tabpanel", name="Completion")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Race")).to_be_visible()
    page.locator("#race-prompt").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("import os")
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#race-prompt")).to_have_value("import os\n")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_have_attribute("data-state", "same")


def test_escape_stops(visitor: Visitor) -> None:
    visitor.set("maxTokens", "1500")
    visitor.button("Race").click()
    expect(visitor.page.locator('[data-lane="plain"] .token').nth(2)).to_be_attached()
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.locator(".verdict strong")).to_have_text("Stopped")
    expect(visitor.button("Race")).to_be_enabled()


def test_settings_stay_and_are_sent(visitor: Visitor) -> None:
    visitor.set("temperature", "0.5")
    visitor.set("seed", "11")
    visitor.set("maxTokens", "12")
    visitor.set("maxNodes", "4")
    visitor.page.get_by_label("Method").select_option("lookup")
    visitor.page.reload()
    visitor.wait_until_ready()
    expect(visitor.page.locator("#settings-summary")).to_have_text("lookup · T 0.5 · seed 11 · 12 tokens")
    visitor.open_tab("Completion")
    visitor.button("Continue").click()
    expect(visitor.page.locator("#completion [data-part=note]")).to_have_text(
        "Cut at 12 tokens; Settings has the limit."
    )
    body = visitor.body()
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.5, 11, 12)
    assert body["speculation"] == {"method": "lookup", "trace": "trees", "max_nodes": 4}


def test_whatever_can_be_used_has_a_name(visitor: Visitor) -> None:
    visitor.page.locator("#settings-toggle").click()
    for tab in ("Race", "Chat", "Completion"):
        visitor.open_tab(tab)
        assert visitor.page.evaluate(UNNAMED) == [], tab


def test_an_end_is_announced_once_and_no_token_is(visitor: Visitor) -> None:
    visitor.set("maxTokens", "40")
    visitor.page.evaluate("""() => {
      window.said = [];
      const place = document.getElementById("announcer");
      new MutationObserver(() => window.said.push(place.textContent)).observe(place, {childList: true});
    }""")
    visitor.button("Race").click()
    expect(visitor.page.locator(".verdict")).to_have_attribute("data-state", "same")
    said = visitor.page.evaluate("window.said")
    assert len(said) == 1
    assert said[0].startswith("Same text")


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_everything_and_never_scrolls_sideways(
    visit: Callable[..., Visitor], real: RunningServer, width: int
) -> None:
    visitor = visit(real, **PHONE | {"viewport": {"width": width, "height": 844}})
    page = visitor.page
    visitor.wait_until_ready()
    assert not visitor.scrolls_sideways()
    visitor.set("maxTokens", "40")
    visitor.button("Close").tap()
    visitor.button("Race").tap()
    expect(page.locator(".verdict")).to_have_attribute("data-state", "same")
    assert not visitor.scrolls_sideways()
    visitor.open_tab("Chat")
    visitor.say("Hello!")
    visitor.reply.locator(".token").first.tap()
    expect(page.get_by_role("tooltip")).to_be_visible()
    assert not visitor.scrolls_sideways()
    page.locator("#settings-toggle").tap()
    expect(page.get_by_label("API key")).to_be_in_viewport()
    visitor.button("Close").tap()
    visitor.open_tab("Completion")
    visitor.button("Continue").tap()
    expect(page.locator("#completion [data-part=note]")).not_to_be_empty()
    assert not visitor.scrolls_sideways()


def test_colours_follow_the_switch(visitor: Visitor) -> None:
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    switch = visitor.page.locator("#theme-toggle")
    seen = []
    for words in ("light", "dark", "as the system"):
        switch.click()
        expect(switch).to_have_attribute("aria-label", f"Colours: {words}")
        seen.append(visitor.page.evaluate(ground))
    assert seen[0] == seen[2] != seen[1]
