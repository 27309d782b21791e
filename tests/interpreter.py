"""Triton's interpreter without work that changes nothing, which takes more than half of its time.

At each call of one kernel by another it goes through all names of the language and replaces them by what it replaced
them by before. Beside each sum and product of integers it computes whether it overflowed, for an assertion that it then
leaves out. And it writes the table of number types anew whenever it looks one up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest


def hasten(patch: pytest.MonkeyPatch) -> None:
    from triton.language import standard
    from triton.runtime import interpreter

    interpreter._patch_lang(standard.sum.fn)  # for good, as the first call of one kernel by another does

    def call(called: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return called.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    look_up, known = interpreter._get_np_dtype, dict[str, Any]()

    def number_type(kind: Any) -> Any:
        if kind.name not in known:
            known[kind.name] = look_up(kind)
        return known[kind.name]

    builder = interpreter.interpreter_builder
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    patch.setattr(interpreter.InterpretedFunction, "__call__", call)
    patch.setattr(interpreter, "_get_np_dtype", number_type)
