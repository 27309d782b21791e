"""Pure modules of the page, asked in the browser: which token wrote which rendered piece, verdicts, tree layout."""

from typing import Any

import pytest
from playwright.sync_api import Page

ALIGN = 'async ([texts, tokens]) => (await import("/web/pages/align.js")).align(texts, tokens)'


@pytest.fixture
def align(page: Page) -> Any:
    def run(texts: list[str], tokens: list[str]) -> list[list[tuple[str, int]]]:
        found = page.evaluate(ALIGN, [texts, tokens])
        assert ["".join(piece["text"] for piece in pieces) for pieces in found] == texts
        return [[(piece["text"], piece["token"]) for piece in pieces] for pieces in found]

    return run


def test_the_header_names_the_model_as_clients_do_and_the_weights_as_they_are(page: Page) -> None:
    health = {"status": "ready", "sentence": "serving", "fraction": 1, "compiling": []}
    engine = {"model": "/models/x", "served_name": "small", "dtype": "float32", "weights": "int8", "device": "cpu"}
    said = page.evaluate(
        """async (health) => {
          const { Engine } = await import("/web/api/engine.js");
          return Object.assign(new Engine(), { health }).sentence;
        }""",
        health | {"engine": engine},
    )
    assert said == "small · int8 on cpu"


def test_an_estimate_below_one_says_why(page: Page) -> None:
    basis = """async (all) => {
      const { basisOf } = await import("/web/drafting/inspector.js");
      return all.map((each) => basisOf(...each));
    }"""
    slow = "estimated: steps are slower now than at the start"
    asked = [[0.47, False], [0.47, True], [1.5, False], [None, False]]
    assert page.evaluate(basis, asked) == [slow, "measured", "estimated", "estimated"]


def test_plain_text_is_split_where_its_tokens_meet(align: Any) -> None:
    assert align(["Hello there"], ["Hel", "lo", " there"]) == [[("Hel", 0), ("lo", 1), (" there", 2)]]


def test_marks_of_markdown_belong_to_no_piece(align: Any) -> None:
    tokens = ["# Ti", "tle\n\n", "a **", "bold", "** w", "ord"]
    assert align(["Title", "a ", "bold", " word"], tokens) == [
        [("Ti", 0), ("tle", 1)],
        [("a ", 2)],
        [("bold", 3)],
        [(" w", 4), ("ord", 5)],
    ]


def test_words_that_come_again_keep_their_order(align: Any) -> None:
    tokens = ["1. cat\n", "2. cat\n", "3. cat"]
    assert align(["cat", "cat", "cat"], tokens) == [[("cat", 0)], [("cat", 1)], [("cat", 2)]]


def test_what_was_written_another_way_does_not_throw_the_rest_off(align: Any) -> None:
    tokens = ["a &", "lt; b ", "\\*c\\* ", "end"]
    pieces = align(["a < b *c* end"], tokens)[0]
    assert pieces[-1] == ("end", 3)
    assert ("b ", 1) in pieces


def test_a_reply_begins_after_its_reasoning(align: Any) -> None:
    tokens = ["<think>", "yes", "</think>", "\n\n", "yes"]
    assert align(["yes"], tokens) == [[("yes", 4)]]


def test_signs_beyond_the_basic_plane_are_not_torn(align: Any) -> None:
    assert align(["a 🦢 b"], ["a ", "🦢", " b"]) == [[("a ", 0), ("🦢", 1), (" b", 2)]]


def test_text_nobody_wrote_belongs_to_the_token_at_hand(align: Any) -> None:
    assert align(["☑ ", "done"], ["- [x] ", "done"]) == [[("☑ ", 0)], [("done", 1)]]


def test_an_accepted_path_lies_along_the_top(page: Page) -> None:
    script = """async ([tree, bonus]) => (await import("/web/drafting/tree_layout.js")).layout(tree, bonus)
        .map(({text, depth, row}) => [text, depth, row])"""
    tree = [
        {"text": "r", "parent": -1, "accepted": True, "logprob": None},
        {"text": "no", "parent": 0, "accepted": False, "logprob": -0.1},
        {"text": "yes", "parent": 0, "accepted": True, "logprob": -0.2},
        {"text": "after no", "parent": 1, "accepted": False, "logprob": -0.3},
    ]
    laid = page.evaluate(script, [tree, {"text": "own", "logprob": -1.0}])
    assert laid == [["r", 0, 0], ["no", 1, 1], ["yes", 1, 0], ["after no", 2, 1], ["own", 2, 0]]


@pytest.mark.parametrize(
    ("plain", "drafted", "headline"),
    [(2300, 1000, "Same text, 2.3 times sooner"), (1000, 1000, "Same text, no sooner"), (500, 1000, "2.0 times later")],
)
def test_a_verdict_does_not_flatter(page: Page, plain: int, drafted: int, headline: str) -> None:
    script = """async ([plain, drafted]) => {
      const { verdict } = await import("/web/pages/verdict.js");
      const trace = { tokens: [{ id: 1, text: "a" }], steps: [1] };
      const reply = (milliseconds) => ({ milliseconds, text: "a", trace });
      return verdict(reply(plain), reply(drafted)).headline;
    }"""
    assert headline in page.evaluate(script, [plain, drafted])
