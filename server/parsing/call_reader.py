"""Reads calls of one form off a tape. What follows the name is passed on as it comes, as the JSON text of an object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from server.parsing.json_text import STRING, CallObject, read_brackets, read_value, spelled_arguments
from server.parsing.parts import CallWriter
from server.parsing.reply_format import CallForm, Piece
from server.parsing.tape import Tape, Wait, overlap, words_of
from server.parsing.typed import as_json, keywords_as_json, property_of, types_of

NAME = re.compile(r"[A-Za-z0-9_.-]+")
DIGITS = re.compile(r"\d+")
LONGEST_HEAD = 256  # characters that a reader passes over between a call's name and its arguments
LONGEST_KEY = 1024
OBJECT_SEPARATORS = " \t\r\n,;["
KEY_ENDS = frozenset(":,{}[] \t\r\n")


class CallReader:
    """schemas: of the arguments, by the functions' names."""

    def __init__(self, tape: Tape, form: CallForm, calls: CallWriter, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._tape = tape
        self._form = form
        self._calls = calls
        self._schemas = schemas

    def read(self) -> Wait[bool]:
        """Read the calls that come next, with what stands before, between and after them. False where there is none:
        the tape may then stand anywhere, and nothing has begun."""
        tape, form = self._tape, self._form
        num_calls, end = 0, tape.at
        is_framed = bool(form.before) and (yield from tape.takes(form.before))
        if form.is_whole_reply and form.before and not is_framed:
            return False
        while (yield from self._call()):
            num_calls, end = num_calls + 1, tape.at
            if self._calls.is_full:
                break
            if form.between.strip():
                yield from self._closes(form.between)
            tape.lacks_text = False
        if num_calls and not self._calls.is_full and tape.lacks_text:  # another call was about to come
            tape.at = len(tape.text)
        elif num_calls:
            tape.at = end
            if is_framed and form.after:
                yield from self._closes(form.after)
        return num_calls > 0

    def _closes(self, fixed: str) -> Wait[bool]:
        """Whether fixed text comes next, in what has begun. Half of it, at the reply's end, is passed as well."""
        tape = self._tape
        tape.lacks_text = False
        if (yield from tape.takes(fixed)):
            return True
        if tape.lacks_text:
            tape.at = len(tape.text)
        return False

    def _start(self, name: str) -> bool:
        """Without a mark, what looks like a call is one only where there is such a function."""
        is_one = not self._form.is_whole_reply or name in self._schemas
        if is_one:
            self._calls.start(name)
        return is_one

    def _call(self) -> Wait[bool]:
        """Whether a call comes next. Once it has begun it is one, whatever follows."""
        tape, pieces, name = self._tape, self._form.pieces, ""
        has_begun = False
        for number, piece in enumerate(pieces):
            if piece.text:
                if not (yield from self._closes(piece.text) if has_begun else tape.takes(piece.text)):
                    return has_begun
            elif piece.slot == "name":
                yield from tape.skip_space()
                name = yield from tape.matching(NAME)
                if not name:
                    return False
            elif piece.slot == "number":
                yield from tape.matching(DIGITS)
            elif piece.slot in ("any", "id"):
                mark = words_of(pieces[number + 1].text)[0]
                if (yield from tape.until(mark, LONGEST_HEAD)) is None:
                    return False
                tape.at -= len(mark)
            else:
                has_begun = yield from self._filled(number, name)
                if not has_begun:
                    return False
        return has_begun

    def _filled(self, number: int, name: str) -> Wait[bool]:
        """Whether the call's slot of this number was read, which holds the arguments, and the call has begun."""
        pieces = self._form.pieces
        slot = pieces[number].slot
        if slot == "call":
            return (yield from self._objects())
        if slot == "keywords":
            return (yield from self._keywords(name))
        after = pieces[number + 1].text if number + 1 < len(pieces) else ""
        is_sure = bool(pieces[number - 1].text.strip())  # a mark after the name has come
        if slot == "parameters":
            return (yield from self._parameters(name, after, is_sure))
        return (yield from self._arguments(name, after, is_sure))

    def _objects(self) -> Wait[bool]:
        """One object or several, in a list or not: models write several between marks that are meant for one."""
        tape, num_calls, has_list = self._tape, 0, False
        while not self._calls.is_full or not num_calls:
            begin = tape.at
            letter = yield from tape.skip(OBJECT_SEPARATORS)
            has_list = has_list or "[" in tape.text[begin : tape.at]
            if letter != "{":
                tape.at = begin
                break
            call = CallObject(tape, self._start, self._calls.show)
            is_whole = yield from call.read()
            num_calls += call.is_named
            if not call.is_named:
                tape.at = begin
            if not is_whole:
                break
        if has_list:
            yield from tape.takes("]")
        return num_calls > 0

    def _arguments(self, name: str, after: str, is_sure: bool) -> Wait[bool]:
        tape = self._tape
        letter = yield from tape.skip_space()
        if letter == "{":
            if not self._start(name):
                return False
            if self._form.strings:
                yield from self._loose_object(self._form.strings)
            else:
                yield from read_brackets(tape, self._calls.show)
            return True
        value = yield from read_value(tape)
        end = tape.at
        is_whole = letter != "" and after.strip() != "" and (yield from tape.takes(after))
        if not (is_whole or (tape.is_read and is_sure)) or not self._start(name):
            return False
        tape.at = end
        self._calls.show(spelled_arguments(value or "null") if is_whole else "")
        return True

    def _parameters(self, name: str, after: str, is_sure: bool) -> Wait[bool]:
        """Arguments that are each between marks. after: what follows the last; is_sure: it is a call though its text
        ends here."""
        tape, (opening, _, middle, _, closing) = self._tape, self._form.parameter_pieces
        end = words_of(after)[0]
        is_any = yield from self._comes(words_of(opening.text)[0], end)
        if not (is_any or (tape.is_read and is_sure)) or not self._start(name):
            return False
        schema = self._schemas.get(name, {})
        separator = "{"
        tape.lacks_text = False
        while (yield from tape.takes(opening.text)):
            mark, *marks = words_of(middle.text)
            key = yield from tape.until(mark, LONGEST_KEY)
            if key is None or not (yield from tape.takes(" ".join(marks))):
                break
            self._calls.show(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(types_of(property_of(schema, key), schema), middle, closing, end)
            separator, tape.lacks_text = ", ", False
        if tape.lacks_text:
            tape.at = len(tape.text)
        else:
            self._calls.show("{}" if separator == "{" else "}")
        return True

    def _comes(self, *marks: str) -> Wait[bool]:
        """Whether one of these marks comes next; it is not passed."""
        at = self._tape.at
        comes = yield from self._tape.takes_any(marks)
        self._tape.at = at
        return comes

    def _value(self, types: frozenset[str], middle: Piece, closing: Piece, end: str) -> Wait[None]:
        """One argument. A string is passed on as it comes. Its closing mark is one only where another argument or the
        end follows, so that text may name it."""
        tape, mark = self._tape, words_of(closing.text)[0]
        opening = words_of(self._form.parameter_pieces[0].text)[0]
        if middle.text.endswith("\n") and (yield from tape.next()) == "\n":
            tape.at += 1
        has_line = closing.text.startswith("\n")
        is_text = types == {"string"}
        pieces: list[str] = []
        show = self._calls.show if is_text else pieces.append
        show('"' if is_text else "")
        begin = tape.at
        while True:
            place = tape.text.find(mark, max(tape.at, begin))
            if place >= 0:
                begin, at = place + 1, tape.at
                tape.at = place + len(mark)
                tape.lacks_text = False
                is_end = (yield from self._comes(opening, end)) or tape.lacks_text
                after, tape.at = tape.at, at
                if not is_end:
                    continue
            stop = place if place >= 0 else len(tape.text) - overlap(tape.text[tape.at :], mark)
            text = tape.text[tape.at : stop]
            kept = text.removesuffix("\n") if has_line else text
            show(json.dumps(kept, ensure_ascii=False)[1:-1] if is_text else kept)
            tape.at += len(kept)
            if place >= 0:
                tape.at = after
                break
            if not (yield from tape.wait()):
                tape.at = len(tape.text)
                return
        self._calls.show('"' if is_text else as_json("".join(pieces), types))

    def _keywords(self, name: str) -> Wait[bool]:
        """Python's keyword arguments, which are known once their closing bracket has come: a call that was cut before
        that has none."""
        tape = self._tape
        if name not in self._schemas:
            return False
        begin, depth, quote = tape.at, 0, ""
        while letter := (yield from tape.next()):
            if quote:
                tape.at += letter == "\\"
                quote = "" if letter == quote else quote
            elif letter in "\"'":
                quote = letter
            elif letter in "([{":
                depth += 1
            elif letter in ")]}":
                if not depth:
                    break
                depth -= 1
            tape.at += 1
        if not letter and tape.is_cut:
            return self._start(name)
        names = tuple(self._schemas[name].get("properties") or ())
        arguments = keywords_as_json(tape.text[begin : tape.at], names) if letter else None
        if arguments is None or not self._start(name):
            return False
        self._calls.show(arguments)
        return True

    def _loose_object(self, mark: str) -> Wait[None]:
        """An object whose keys have no quotes, and whose strings stand between two marks."""
        tape, depth, word = self._tape, 0, ""
        while letter := (yield from tape.next()):
            if (yield from tape.takes(mark)):
                yield from self._loose_string(mark)
                continue
            if letter == '"':
                word += yield from tape.matching(STRING)
                word += '"' if (yield from tape.takes('"')) else ""
                continue
            tape.at += 1
            if letter not in KEY_ENDS:
                word += letter
                continue
            self._calls.show((json.dumps(word.strip('"')) if letter == ":" and word else word) + letter)
            word = ""
            depth += (letter in "{[") - (letter in "}]")
            if depth == 0:
                return

    def _loose_string(self, mark: str) -> Wait[None]:
        tape = self._tape
        self._calls.show('"')
        while (place := tape.text.find(mark, tape.at)) < 0:
            stop = len(tape.text) - overlap(tape.text[tape.at :], mark)
            self._calls.show(json.dumps(tape.text[tape.at : stop], ensure_ascii=False)[1:-1])
            tape.at = stop
            if not (yield from tape.wait()):
                return
        self._calls.show(json.dumps(tape.text[tape.at : place], ensure_ascii=False)[1:-1] + '"')
        tape.at = place + len(mark)
