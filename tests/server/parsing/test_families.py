"""Every family's calls and thoughts, in any pieces, whole and cut; and marks that are only spoken of."""

import pytest

from server.parsing.parts import CallArguments, CallStart, Content, Reasoning
from server.parsing.reply_format import families
from tests.server.parsing.family_replies import ARGUMENTS, CALLS
from tests.server.parsing.replies import called, check, parser_of, read, said

CALLERS = sorted(name for name, family in families().items() if family.calls)
THINKERS = sorted(name for name, family in families().items() if family.thoughts)
BOTH = [("weather", ARGUMENTS), ("now", {})]


def test_every_family_has_a_reply_here() -> None:
    assert sorted(CALLS) == CALLERS


@pytest.mark.parametrize("family", CALLERS)
def test_calls_are_read_and_nothing_else_is_shown(family: str) -> None:
    parts = read([CALLS[family]], parser_of(family))
    assert called(parts) == BOTH
    assert not said(parts)
    check(CALLS[family], list(parts), family)


@pytest.mark.parametrize("family", [name for name in CALLERS if families()[name].calls[0].openings])
def test_text_stands_before_and_after_calls(family: str) -> None:
    text = f"Let me see.\n\n{CALLS[family]} Done."
    parts = read([text], parser_of(family))
    assert said(parts) == ["Let me see.", " Done."]
    assert called(parts) == BOTH
    check(text, list(parts), family)


@pytest.mark.parametrize("family", CALLERS)
def test_a_call_that_is_cut_is_a_call_as_far_as_it_goes(family: str) -> None:
    """What is shown of its arguments is the beginning of the whole ones, and nothing of its marks is content."""
    whole = next(part.text for part in read([CALLS[family]], parser_of(family)) if isinstance(part, CallArguments))
    form = families()[family].calls[0]
    half_marks = {mark[:size] for mark in (*form.openings, *families()[family].frames) for size in range(1, len(mark))}
    for size in range(len(CALLS[family])):
        reply = CALLS[family][:size]
        parts = read([reply], parser_of(family), is_cut=True)
        first = next((part.text for part in parts if isinstance(part, CallArguments)), "")
        assert whole.startswith(first)
        assert said(parts) == [] or (said(parts) == [reply] and (form.is_whole_reply or reply in half_marks)), parts
        assert not said(read([reply], parser_of(family, is_forced=True)))
        if reply.strip() and not any(isinstance(part, CallStart) for part in parts):
            assert said(read([reply], parser_of(family))) == [reply]  # it has ended of itself, so that it is no call


@pytest.mark.parametrize("family", CALLERS)
def test_one_call_is_enough_where_parallel_ones_are_not_wanted(family: str) -> None:
    parser = parser_of(family, max_calls=1)
    assert called(read(CALLS[family], parser)) == BOTH[:1]
    assert parser.is_done


@pytest.mark.parametrize("family", CALLERS)
def test_marks_that_are_spoken_of_are_text_with_all_its_spaces(family: str) -> None:
    for mark in {mark for form in families()[family].calls for mark in form.openings}:
        text = f"Write  {mark}  before a call, then {mark}, and\n{mark}"
        check(text, [Content(text)], family)


@pytest.mark.parametrize("family", THINKERS)
def test_thoughts_are_read(family: str) -> None:
    for opening, closing in families()[family].thoughts:
        thought, said = [Reasoning("Hm,\n so  be it.")], [Content("Yes. ")]
        check(f"{opening}\nHm,\n so  be it.\n{closing}\n\nYes. ", [*thought, *said], "hermes", family)
        check(f"\nHm,\n so  be it.{closing}Yes. ", [*thought, *said], "hermes", family, open_thought=closing)
        half = f"Hm,\n so  be it.{closing[:-1]}"
        check(f"{opening}{half}", [Reasoning(half)], "hermes", family)
        check(f"I write {opening} a", [Content(f"I write {opening} a")], "hermes", family)


@pytest.mark.parametrize("family", CALLERS)
def test_a_model_may_think_and_then_call(family: str) -> None:
    thinker = family if family in THINKERS else "think"
    opening, closing = families()[thinker].thoughts[0]
    text = f"{opening}Call {CALLS[family][:9]}?{closing}\n{CALLS[family]}"
    parts = read([text], parser_of(family, thinker))
    assert parts[0] == Reasoning(f"Call {CALLS[family][:9]}?")
    assert called(parts) == BOTH
    assert not said(parts)


def _closings(family: str) -> list[str]:
    return sorted({mark for form in families()[family].calls for mark in form.closings})


@pytest.mark.parametrize("family", [name for name in CALLERS if _closings(name)])
def test_a_closing_mark_after_a_call_is_dropped(family: str) -> None:
    for mark in _closings(family):
        text = f"{CALLS[family]}\n{mark}"
        replies = [(text, False, []), (f"{text} Done.", False, [" Done."]), (text[:-1], True, [])]
        if families()[family].calls[0].openings:
            replies.append((f"{text}\n{CALLS[family]}{mark}", False, []))
        for reply, is_cut, expected in replies:
            parts = read([reply], parser_of(family), is_cut)
            assert (called(parts)[:2], said(parts)) == (BOTH, expected), reply
            if not is_cut:
                check(reply, list(parts), family)
        said_of = f"It writes {mark} here. {mark}"
        check(said_of, [Content(said_of)], family)


WITHOUT_OPENING = {
    "command_a": "<|START_ACTION|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "hermes": "<tool_call>\n",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "minimax_m2": "<minimax:tool_call>\n",
    "nemotron": "<TOOLCALL>",
    "phi4_mini": "<|tool_call|>",
    "qwen3_coder": "<tool_call>\n",
    "seed_oss": "<seed:tool_call>\n",
}


@pytest.mark.parametrize(("family", "opening"), WITHOUT_OPENING.items())
def test_calls_whose_opening_mark_is_missing_are_read_to_their_closing_mark(family: str, opening: str) -> None:
    text = CALLS[family].replace(opening, "")
    assert _closings(family)[0] in text != CALLS[family]
    for reply in (text, f"{text}\n"):
        parts = read([reply], parser_of(family))
        assert (called(parts), said(parts)) == (BOTH, [])
        check(reply, list(parts), family)
