"""`kernel`: how a compiled function is compiled, alone and into others.

Numba makes machine code of every function, and again within each that calls it, however deep: a chain of ten calls is
optimised ten times. Of a kernel only what Python calls becomes machine code, once. Where a kernel calls it, its code is
linked into that one as it is, and optimised there.
Invariant: without `fastmath` a result's bits do not depend on where code is optimised, so no kernel has that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from numba import types
from numba.core import compiler
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that is there to be linked into others: neither optimised nor made machine code of."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):  # type: ignore[misc]
    """Lowers a function into such a library, where its callers find it."""

    _name = "gander_linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        state.targetctx.insert_user_function(lowered.fndesc, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=lowered.fndesc)
        return True


class _LinkedCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's passes but for the last."""

    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_LinkedLowering if each is NativeLowering else each, why) for each, why in passes.passes]
        passes.finalize()
        return [passes]


class _Linked(CPUDispatcher):  # type: ignore[misc]
    """A kernel as others call it: one for all constants and widths of integers."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template(tuple(map(_widened, args)), {name: _widened(kws[name]) for name in kws})

    def add_overload(self, compiled: Any) -> None:
        """There is nothing that Python could call."""
        self.overloads[tuple(compiled.signature.args)] = compiled


def _widened(kind: types.Type) -> types.Type:
    """The type for a constant, or a narrower integer, that an argument or a part of it is."""
    kind = types.unliteral(kind)
    if isinstance(kind, types.BaseTuple):  # a named one cannot be cast
        is_named = isinstance(kind, types.BaseNamedTuple)
        return kind if is_named else types.BaseTuple.from_types(tuple(map(_widened, kind)))
    is_narrow = isinstance(kind, types.Integer) and kind.signed and kind.bitwidth < types.int64.bitwidth
    return types.int64 if is_narrow else kind


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel as Python calls it, kept on disk."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._options = {"nopython": True, "boundscheck": None, "no_cfunc_wrapper": True, **options}
        super().__init__(function, targetoptions=self._options)

    def compile(self, sig: Any) -> Any:
        """Or load it. Most kernels are never called by Python, and need no place on disk."""
        if not isinstance(self._cache, FunctionCache):
            self.enable_caching()
        return super().compile(sig)

    @cached_property
    def _linked(self) -> _Linked:
        options = self._options | {"no_cpython_wrapper": True}
        return _Linked(self.py_func, targetoptions=options, pipeline_class=_LinkedCompiler)

    def add_overload(self, compiled: Any) -> None:
        """What it calls finds its own environment too, as it does where a kernel is loaded from disk."""
        for environment in compiled.referenced_envs or compiled._find_referenced_environments():
            compiled.library.codegen.set_env(environment.env_name, environment)
        super().add_overload(compiled)

    @property
    def _numba_type_(self) -> types.Type:
        """What compiled code sees in its place."""
        return self._linked._numba_type_


def kernel(function: Callable[..., Any] | None = None, *, borrows: bool = False, **options: Any) -> Any:
    """Compile a function, as `numba.njit(cache=True)` does.

    borrows: it makes and returns no array, so that it need not count references, which is most of the code where
    records of many arrays are handed on. options: numba's.
    """
    options["_nrt"] = not borrows
    return (lambda each: Kernel(each, options)) if function is None else Kernel(function, options)
