"""The kernels' tests at each level of instructions below this processor's: a process a level."""

from __future__ import annotations

import pytest

from tests.levels import AMX, AVX2, AVX512, AVX512_BF16, AVX512_VNNI, AVX_VNNI, SSE4, Level, run, run_at

PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
GROUPED = ("tests/decoding/weights/test_grouped_codes.py",)
PRODUCTS = (*GROUPED, "tests/decoding/weights/test_float_panels.py", "tests/decoding/weights/test_int8_panels.py")
LAYERS = ("tests/decoding/model/test_layers.py", "tests/decoding/drafting/eagle/test_fused_head.py")
EVERYTHING = (  # that is compiled
    *PRODUCTS,
    *LAYERS,
    "tests/decoding/kernels/cpu",
    "tests/decoding/attention/test_attention.py",
    "tests/decoding/model/experts",
    "tests/decoding/model/state",
    "tests/decoding/sampling",
)


def check(level: Level, files: tuple[str, ...]) -> None:
    if not level.is_here:
        pytest.skip("this processor lacks some of its instructions")
    run_at(level, (*PYTEST, *files))


@pytest.mark.parametrize(
    ("level", "above"), [(AVX2, {AVX_VNNI, AVX512}), (AVX512, {AVX512_VNNI})], ids=["haswell", "skylake-avx512"]
)
def test_products_and_layers_hold_at_lower_levels(level: Level, above: set[Level]) -> None:
    if not any(each.is_here for each in above):
        pytest.skip("the tests beside run at this level anyway, or at a lower one")
    check(level, (*PRODUCTS, *LAYERS))


def test_bfloat16_layers_are_fused_where_no_tiles_are_used() -> None:
    if not AMX.is_here:
        pytest.skip("this processor has no AMX, so that the tests beside run at this level anyway")
    check(AVX512_BF16, ("tests/decoding/weights/test_float_panels.py", *LAYERS))


@pytest.mark.slow
@pytest.mark.parametrize("level", [AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AVX512_BF16], ids=lambda level: level.processor)
def test_everything_holds_at_each_level(level: Level) -> None:
    check(level, EVERYTHING)


@pytest.mark.slow
def test_grouped_products_hold_without_avx() -> None:
    check(SSE4, GROUPED)


@pytest.mark.slow
def test_attention_panels_and_layers_hold_in_tiles() -> None:
    """By software, where the processor has none."""
    if AMX.is_here:
        pytest.skip("the tests beside run in tiles")
    files = "tests/decoding/attention", "tests/decoding/weights/test_float_panels.py"
    run(("-m", "tests.soft_tiles", *PYTEST[2:], *files, *LAYERS))


@pytest.mark.slow
@pytest.mark.parametrize("level", [AVX_VNNI, AVX512_VNNI], ids=lambda level: level.processor)
def test_processors_with_vnni_multiply_four_bytes_at_once(level: Level) -> None:
    """Compiled for one of them and read as text, wherever the test runs."""
    code = (
        "import llvmlite.binding, numba\n"
        "from decoding.kernels.cpu.program import SHARE\n"
        "from decoding.kernels.cpu.products.grouped.multiplying import multiply_8_of_32\n"
        "llvmlite.binding.initialize_native_asmparser()\n"
        "text = numba.cfunc(SHARE)(multiply_8_of_32)._library.get_asm_str()\n"
        "assert 'vpdpbusd' in text and 'pmaddubsw' not in text and 'pmaddwd' not in text\n"
    )
    run_at(level, ("-c", code))


@pytest.mark.slow
def test_processors_with_tiles_multiply_in_them() -> None:
    """Compiled for one of them and read as text, wherever the test runs. Of floats nothing is."""
    code = (
        "import llvmlite.binding, numba\n"
        "from decoding.kernels import processor\n"
        "processor.multiplies_in_tiles = lambda: True  # the system here may not let the process use them\n"
        "from decoding.kernels.cpu.program import SHARE\n"
        "from decoding.kernels.cpu.attention import exact\n"
        "from decoding.kernels.cpu.products import int8, panels\n"
        "from decoding.kernels.cpu.products.grouped import multiplying\n"
        "llvmlite.binding.initialize_native_asmparser()\n"
        "def has(share, name):\n"
        "    return name in numba.cfunc(SHARE)(share)._library.get_asm_str()\n"
        "assert has(panels.multiply_halves, 'tdpbf16ps') and has(int8.multiply_to_floats, 'tdpbusd')\n"
        "assert has(multiplying.multiply_6_of_16_in_spans, 'tdpbsud')\n"
        "assert has(exact.attend, 'tdpbf16ps') and not has(exact.attend, 'vdpbf16ps')\n"
        "assert not has(panels.multiply_floats, 'tmm')\n"
    )
    run_at(AMX, ("-c", code))
