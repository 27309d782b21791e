"""Writes calls as the models of a family do, in pieces of which each is fixed text or written by the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from server.parsing.reply_format import CallForm


class Piece(NamedTuple):
    text: str
    is_mark: bool = False


Call = tuple[str, dict[str, Any]]


def call_pieces(form: CallForm, calls: Sequence[Call]) -> list[Piece]:
    pieces = [Piece(form.before, True)]
    for number, (name, arguments) in enumerate(calls):
        pieces += [Piece(form.between, True)] if number else []
        for piece in form.pieces:
            pieces += [Piece(piece.text, True)] if piece.text else _filled(form, piece.slot, name, arguments, number)
    return [piece for piece in [*pieces, Piece(form.after, True)] if piece.text]


def _filled(form: CallForm, slot: str, name: str, arguments: dict[str, Any], number: int) -> list[Piece]:
    match slot:
        case "name":
            return [Piece(name)]
        case "call":
            return [Piece(_json({form.keys[0]: name, form.keys[1]: arguments}))]
        case "arguments":
            return list(_loose(arguments, form.strings)) if form.strings else [Piece(_json(arguments))]
        case "keywords":
            python = {True: "True", False: "False", None: "None"}
            texts = (
                f"{key}={python[value] if value is None or isinstance(value, bool) else _json(value)}"
                for key, value in arguments.items()
            )
            return [Piece(", ".join(texts))]
        case "parameters":
            return [piece for key, value in arguments.items() for piece in _parameter(form, key, value)]
    assert slot == "number"
    return [Piece(str(number))]


def _parameter(form: CallForm, key: str, value: Any) -> Iterator[Piece]:
    texts = {"key": key, "value": value if isinstance(value, str) else _json(value)}
    for piece in form.parameter_pieces:
        yield Piece(piece.text, True) if piece.text else Piece(texts[piece.slot])


def _loose(value: Any, mark: str) -> Iterator[Piece]:
    if isinstance(value, str):
        yield from (Piece(mark, True), Piece(value), Piece(mark, True))
    elif isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else (("", item) for item in value)
        yield Piece("{" if isinstance(value, dict) else "[")
        for number, (key, item) in enumerate(items):
            yield Piece(("," if number else "") + (f"{key}:" if key else ""))
            yield from _loose(item, mark)
        yield Piece("}" if isinstance(value, dict) else "]")
    else:
        yield Piece(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
