"""How a model writes its replies: tool calls, thoughts, and marks that frame them.

Each file in `families/` describes one way. The reader of replies and the grammar of forced calls are both made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from server.parsing.tape import words_of

FAMILIES = Path(__file__).parent / "families"
CALL_ID = "call_{hex}"
SLOTS = ("name", "arguments", "call", "parameters", "keywords", "number", "any", "id", "key", "value")
SLOT = re.compile(r"\{(" + "|".join(SLOTS) + r")\}")
BRACKETED = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # a mark as families write them, without brackets of a list


class Piece(NamedTuple):
    """Fixed text, or a slot that is filled in; the other of the two is empty. White space in fixed text is written as
    it is, and read as any white space or none."""

    text: str
    slot: str = ""


class CallForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One way to write calls: before, the calls with `between` between them, after. A call has one of these slots:

    {name} and {arguments}: the function's name, and a JSON object; {call}: a JSON object of both, under `keys`;
    {name} and {parameters}: each argument written as `parameter`, with {key} and {value}, where a string is written
    without quotes and anything else as JSON; {name} and {keywords}: keyword arguments of Python.
    {number}: the call's number in the conversation, from 0; {id}, {any}: read and dropped.

    strings: what stands before and after a string in arguments whose keys have no quotes, instead of quotes.
    is_whole_reply: no mark opens the calls, so that they are read only where the reply begins with them.
    """

    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    parameter: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    strings: str = ""
    is_whole_reply: bool = False

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return pieces_of(self.call)

    @cached_property
    def parameter_pieces(self) -> tuple[Piece, ...]:
        return pieces_of(self.parameter)

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """The marks with which these calls may begin. A model may leave out what comes before the first call."""
        if self.is_whole_reply:
            return ()
        texts = (self.before, self.pieces[0].text)
        return tuple(dict.fromkeys(words_of(text)[0] for text in texts if text.strip()))

    @cached_property
    def closings(self) -> tuple[str, ...]:
        """The marks with which a call, or all of them, may end."""
        return tuple(dict.fromkeys(BRACKETED.findall(self.pieces[-1].text + self.after)))


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of `families/`. models: who writes so; recognised_by: strings, all of one list of which are in the chat
    template; calls: the first form is the one that is written, all are read; thoughts: pairs of marks; frames: marks
    that mean nothing to the reader; call_id: {hex} and {letters} are random, {name} and {number} the call's."""

    models: str
    recognised_by: tuple[tuple[str, ...], ...]
    calls: tuple[CallForm, ...] = ()
    thoughts: tuple[tuple[str, str], ...] = ()
    frames: tuple[str, ...] = ()
    call_id: str = CALL_ID

    def evidence(self, template_text: str) -> int:
        """How many strings of a chat template are this family's; 0 where it is not recognised."""
        found = [len(each) for each in self.recognised_by if all(string in template_text for string in each)]
        return max(found, default=0)


NOTHING = Family("", ())


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What is known of a model's replies, see `Family`. template: transformers' response template, which reads them
    instead, see `template_parser`."""

    calls: tuple[CallForm, ...] = ()
    thoughts: tuple[tuple[str, str], ...] = ()
    frames: tuple[str, ...] = ()
    call_id: str = CALL_ID
    template: Any = None

    @property
    def marks(self) -> tuple[str, ...]:
        """All fixed text with which something begins or ends."""
        texts = [*self.frames, *(mark for pair in self.thoughts for mark in pair)]
        for form in self.calls:
            pieces = (*form.pieces, *form.parameter_pieces)
            texts += [form.before, form.between, form.after, form.strings, *(piece.text for piece in pieces)]
        return tuple(filter(None, (text.strip() for text in texts)))


@cache
def families() -> dict[str, Family]:
    """By name."""
    decode = msgspec.json.Decoder(Family).decode
    return {path.stem: decode(path.read_bytes()) for path in sorted(FAMILIES.glob("*.json"))}


def pieces_of(text: str) -> tuple[Piece, ...]:
    """Fixed text and slots by turns, without empty text."""
    parts = SLOT.split(text)
    pieces = (Piece("", part) if number % 2 else Piece(part) for number, part in enumerate(parts))
    return tuple(piece for piece in pieces if piece != Piece(""))


def recognised(template_text: str, known: Mapping[str, Family]) -> str:
    """The name of the family for which a chat template has most evidence; "" for none."""
    evidence = {name: family.evidence(template_text) for name, family in known.items()}
    best = max(evidence, key=evidence.__getitem__, default="")
    return best if evidence.get(best) else ""


def joined(calls: Family, thoughts: Family) -> ReplyFormat:
    """The format of a model that calls as one family does, and thinks as another."""
    frames = tuple(dict.fromkeys((*calls.frames, *thoughts.frames)))
    return ReplyFormat(calls.calls, thoughts.thoughts, frames, calls.call_id)
