"""Reads a reply: thoughts, what is said, and calls. One reader for all families, by the format that describes theirs.

What turns out not to be a call is text, with all its white space. White space is dropped before a call, beside the
marks of a thought, and after the last call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.parsing.bare_calls import read_bare_calls
from server.parsing.call_reader import CallReader
from server.parsing.parts import CallWriter, Content, Part, Reasoning
from server.parsing.reply_format import CallForm, ReplyFormat
from server.parsing.spaces import SpaceHolder
from server.parsing.tape import Tape, Wait, overlap, words_of

Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsWanted:
    """schemas: of the arguments of the functions that may be called, by name; none where there may be no calls.
    make_id: a call's id, of its name and its number in the reply; is_forced: a grammar lets the reply be calls alone,
    so that no text is shown where it was cut within one."""

    schemas: Schemas = field(default_factory=dict)
    make_id: Callable[[str, int], str] = lambda name, number: f"{name}_{number}"
    max_calls: int | None = None
    is_forced: bool = False


class ReplyParser:
    """Of one reply. open_thought: the closing mark of a thought that the prompt leaves open, "" where there is none."""

    def __init__(self, format_: ReplyFormat, wanted: CallsWanted, open_thought: str = "") -> None:
        self._tape = Tape()
        self._parts: list[Part] = []
        self._said, self._thought = SpaceHolder(), SpaceHolder()
        self.calls = CallWriter(wanted.make_id, wanted.max_calls, self._parts)
        self._wanted = wanted
        self._thoughts = sorted(format_.thoughts, key=lambda pair: -len(pair[0]))
        self._frames = sorted(format_.frames, key=lambda frame: -len(frame))
        self._forms = format_.calls if wanted.schemas else ()
        self._closings = tuple(dict.fromkeys(mark for form in self._forms for mark in form.closings))
        self._marks = _shortest([*(pair[0] for pair in self._thoughts), *self._frames], self._forms)
        self._pattern = re.compile("|".join(map(re.escape, self._marks)))
        self._has_said = False  # since the reply, or a part of it that a frame or a thought set apart, began
        self._tried_at: int | None = None  # the place on the tape from which it is tried whether a call begins
        self._num_calls_before = 0  # that
        self._reading = self._read(open_thought)
        self.is_reasoning = bool(open_thought)
        self.is_done = False

    @property
    def num_held(self) -> int:
        at = self._tape.at
        if self._tried_at is not None and self.calls.num_calls == self._num_calls_before and not self.is_reasoning:
            at = self._tried_at
        return len(self._tape.text) - at + self._said.num_held

    def push(self, text: str) -> list[Part]:
        self._tape.text += text
        return self._advance()

    def flush(self, is_cut: bool = False) -> list[Part]:
        self._tape.is_ended, self._tape.is_cut = True, is_cut
        return self._advance()

    def push_call(self, name: str, arguments: str) -> list[Part]:
        """The parts of a call that was read elsewhere."""
        self._said.flush()
        self.calls.start(name)
        self.calls.show(arguments)
        return self._advance()

    def skip_space(self) -> None:
        """Drop white space before what is said next."""
        self._said.skip()

    def _advance(self) -> list[Part]:
        if not self.is_done:
            next(self._reading, None)
        parts, self._parts[:] = list(self._parts), []
        return parts

    def _read(self, open_thought: str) -> Wait[None]:
        if open_thought:
            yield from self._think(open_thought)
        while not self.calls.is_full:
            if self._may_be_calls and (yield from self._whole_reply()):
                continue
            mark = yield from self._say()
            if not mark:
                break
            if (yield from self._marked()):
                continue
            if self._tape.is_cut_here:
                break
            self._show(mark)
            self._tape.at += len(mark)
        if self._has_said or not (self.calls.num_calls or self._wanted.is_forced):
            self._parts.append(Content(self._said.flush()))
        self.is_done = self.calls.is_full

    def _try(self) -> int:
        """Where the tape stands. Nothing after it has a part yet, until a call or a thought has begun."""
        self._tried_at, self._num_calls_before = self._tape.at, self.calls.num_calls
        return self._tape.at

    @property
    def _may_be_calls(self) -> bool:
        return bool(self._wanted.schemas) and not self._has_said

    def _whole_reply(self) -> Wait[bool]:
        """Whether what comes next is calls that no mark opens: of a family that writes them so, or, as small models do
        whatever their family, an object for each call and nothing else, also after calls that marks opened."""
        tape, schemas = self._tape, self._wanted.schemas
        begin = self._try()
        yield from tape.skip_space()
        for form in self._forms:
            if form.is_whole_reply and not self.calls.num_calls and (yield from self._section(form)):
                return True
        tape.at = begin
        calls = [] if self._wanted.is_forced else (yield from read_bare_calls(tape, schemas, self._closings))
        if not calls:
            begins_another = bool(self.calls.num_calls) and tape.is_cut_here and begin < len(tape.text)
            tape.at = len(tape.text) if begins_another else begin
            return begins_another
        self._said.flush()
        for name, arguments in calls:
            if not self.calls.is_full:
                self.calls.start(name)
                self.calls.show(arguments)
        return True

    def _say(self) -> Wait[str]:
        """Say what comes before the next mark, which is returned and not passed; "" at the reply's end."""
        tape, self._tried_at = self._tape, None
        while True:
            found = self._pattern.search(tape.text, tape.at) if self._marks else None
            if found is not None:
                self._show(tape.text[tape.at : found.start()])
                tape.at = found.start()
                return found[0]
            held = max((overlap(tape.text[tape.at :], mark) for mark in self._marks), default=0)
            if tape.is_ended and not (tape.is_cut and self.calls.num_calls):
                held = 0
            end = len(tape.text) - held
            self._show(tape.text[tape.at : end])
            tape.at = end
            tape.drop()
            if not (yield from tape.wait()):
                return ""

    def _marked(self) -> Wait[bool]:
        """Whether the mark that comes next begins a thought, a frame or a call, which is read then."""
        tape = self._tape
        begin, tape.lacks_text = self._try(), False
        for opening, closing in () if self._has_said else self._thoughts:
            if (yield from tape.takes(opening)):
                yield from self._think(closing)
                return True
        for frame in self._frames:
            if (yield from tape.takes(frame)):
                self._has_said = False
                return True
        for form in self._forms:
            if not form.is_whole_reply and (yield from self._section(form)):
                return True
        tape.at = begin
        return False

    def _section(self, form: CallForm) -> Wait[bool]:
        """Whether calls of this form come next, which are read then."""
        begin = self._tape.at
        if (yield from CallReader(self._tape, form, self.calls, self._wanted.schemas).read()):
            self._said.flush()
            self._has_said = False
            yield from self._close()
            return True
        self._tape.at = begin
        return False

    def _close(self) -> Wait[None]:
        """Pass closing marks after a call: models write them twice, and also where they left out the opening one."""
        tape = self._tape
        tape.lacks_text = False
        while not self.calls.is_full and (yield from tape.takes_any(self._closings)):
            pass
        if tape.is_cut_here:
            tape.at = len(tape.text)

    def _think(self, closing: str) -> Wait[None]:
        """Read a thought, and drop the white space after it."""
        tape = self._tape
        self.is_reasoning = True
        self._thought.skip()
        while (place := tape.text.find(closing, tape.at)) < 0:
            end = len(tape.text) - (0 if tape.is_ended else overlap(tape.text[tape.at :], closing))
            self._parts.append(Reasoning(self._thought.push(tape.text[tape.at : end])))
            tape.at = end
            tape.drop()
            if not (yield from tape.wait()):
                return
        self._parts.append(Reasoning(self._thought.push(tape.text[tape.at : place])))
        tape.at = place + len(closing)
        self.is_reasoning = False
        self._said.skip()

    def _show(self, text: str) -> None:
        text = self._said.push(text)
        if text and not self._wanted.is_forced:
            self._has_said = True
            self._parts.append(Content(text))


def _shortest(texts: Sequence[str], forms: Sequence[CallForm]) -> list[str]:
    """The marks to look for: of those that begin alike, the shortest alone, for what it opens is found out then."""
    marks = {words_of(text)[0] for text in texts} | {mark for form in forms for mark in form.openings}
    return sorted(mark for mark in marks if not any(mark != each and mark.startswith(each) for each in marks))
