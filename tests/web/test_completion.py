"""Text that grows while it streams, in the colours the server tells, and stops when told to."""

import pytest

from tests.server.servers import RunningServer, wait_until
from tests.web.visitor import Visitor, expect

PLACE = "#completion .code-text"
WATCH = """
window.lengths = [];
const reply = document.querySelector("#completion .code-text");
new MutationObserver(() => window.lengths.push(reply.textContent.length)).observe(reply, {childList: true});
"""


@pytest.fixture
def writer(visitor: Visitor) -> Visitor:
    visitor.open_tab("Completion")
    return visitor


def draft_anyway(writer: Visitor) -> None:
    """Whatever a node costs on this machine just now."""
    writer.set("maxNodes", "16")
    writer.button("Close").click()


def continue_text(writer: Visitor) -> None:
    writer.button("Continue").click()
    expect(writer.page.locator("#completion [data-part=note]")).not_to_be_empty()


def test_text_appears_while_it_streams(writer: Visitor) -> None:
    """Undrafted, since a drafted reply can be over before the page, which draws with pauses, has drawn five times."""
    writer.set("maxTokens", "400")
    writer.page.locator("#settings [name=method]").select_option("none")
    writer.page.evaluate(WATCH)
    continue_text(writer)
    lengths: list[int] = writer.page.evaluate("window.lengths")
    grown = [length for length in lengths if length]
    assert grown == sorted(grown)
    assert len(set(grown)) >= 5, lengths


def test_colours_are_those_of_the_trace_and_the_text_is_that_of_the_api(writer: Visitor, real: RunningServer) -> None:
    writer.keep_replies()
    draft_anyway(writer)
    continue_text(writer)
    traced = writer.traced_tokens()
    assert writer.shown_tokens(PLACE) == [
        (token["text"], token["source"], index) for index, token in enumerate(traced) if token["text"]
    ]
    assert len({token["source"] for token in traced}) >= 2
    body = writer.body()
    reply = real.post(**{name: body[name] for name in ("prompt", "temperature", "seed", "max_tokens")}).json()
    assert reply["choices"][0]["text"] == "".join(token["text"] for token in traced)
    for source in ("context", "bonus"):
        shown = writer.page.locator(f'#completion .legend li[data-source="{source}"] b')
        expect(shown).to_have_text(str(sum(token["source"] == source for token in traced)))


def test_every_source_has_a_colour_of_its_own_in_both_themes(writer: Visitor) -> None:
    script = "ids => ids.map(id => getComputedStyle(document.documentElement).getPropertyValue(`--${id}`).trim())"
    names = ["context", "adjacency", "ngram", "draft-model", "prediction", "grammar", "bonus"]
    for theme in ("light", "dark"):
        writer.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        colours = writer.page.evaluate(script, names)
        assert len(set(colours)) == len(names), theme
        assert all(colours), theme


def test_stop_stops_and_the_server_lets_go(writer: Visitor, real: RunningServer) -> None:
    writer.set("maxTokens", "1500")
    writer.page.locator("#settings [name=method]").select_option("none")
    writer.button("Continue").click()
    expect(writer.page.locator(f"{PLACE} .token").nth(3)).to_be_attached()
    wait_until(lambda: real.metric("gander_running") == 1)
    writer.button("Stop").click()
    expect(writer.page.locator("#completion [data-part=note]")).to_have_text("Stopped.")
    wait_until(lambda: real.metric("gander_running") == 0)
    assert 3 < len(writer.shown_tokens(PLACE)) < 1400
    expect(writer.button("Continue")).to_be_enabled()


def test_a_card_tells_of_a_token_that_is_pointed_at_or_focused(writer: Visitor) -> None:
    writer.keep_replies()
    draft_anyway(writer)
    continue_text(writer)
    traced = writer.traced_tokens()
    index = next(index for index, token in enumerate(traced) if token["source"] == "context" and token["text"].strip())
    span = writer.page.locator(f'{PLACE} .token[data-token="{index}"]')
    span.hover()
    card = writer.page.get_by_role("tooltip")
    expect(card).to_contain_text("context: copied from an earlier match")
    expect(card).to_contain_text(f"token {traced[index]['depth']} of step {traced[index]['step']}")
    expect(card).to_contain_text("drafted accepted")
    writer.page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    writer.page.locator(PLACE).focus()
    writer.page.keyboard.press("ArrowRight")
    writer.page.keyboard.press("ArrowRight")
    expect(writer.page.locator(f"{PLACE} .token:focus")).to_have_attribute("data-token", "1")
    expect(card).to_be_visible()
    writer.page.keyboard.press("Enter")
    expect(writer.page.locator("#completion .tree-heading")).to_contain_text(f"Step {traced[1]['step']}")


def test_four_thousand_tokens_stay_fast(writer: Visitor) -> None:
    """Appending tokens does not touch those that are there: no span of the first is made anew."""
    script = """async () => {
      const { Trace } = await import("/web/api/trace.js");
      const { TokenText } = await import("/web/drafting/tokens.js");
      const place = document.createElement("div");
      const trace = new Trace();
      const text = new TokenText(place, trace);
      trace.add({tokens: [{text: "first", source: "bonus", step: 1, depth: 1, logprob: 0}]});
      text.show();
      const first = place.firstChild;
      let mutations = 0;
      const observer = new MutationObserver((records) => (mutations += records.length));
      observer.observe(place, {childList: true, subtree: true, characterData: true});
      for (let step = 2; step <= 1000; step++) {
        const token = {text: "a", source: "context", step, depth: 1, logprob: 0};
        const tokens = [token, token, token, token];
        trace.add({tokens, steps: [{step, drafted: 4, accepted: 3}]});
        text.show();
      }
      await new Promise(requestAnimationFrame);
      return [place.childNodes.length, place.firstChild === first, mutations];
    }"""
    assert writer.page.evaluate(script) == [3997, True, 999]
