"""The kernels in groups: what plain replies need, exact attention's, what most layers are made of, each drafting
method's, and those of each kind of packed weights. A group is compiled by running what calls it.

Knows nothing of processes. Invariant: where a group is in the kernel cache, running it loads it and compiles nothing.
"""

from __future__ import annotations

ATTENTION, LAYERS, PLAIN = "attention", "layers", "plain"
WEIGHTS = "weights"  # begins the names of the groups of packed weights


def methods() -> list[str]:
    """Those that have kernels, in the order in which they are wanted; each is a group."""
    from decoding.drafting import registry  # for which attention need not wait: it imports torch

    return [method for method in registry.METHODS if method != registry.PLAIN]


def weights_group(bits: int, width: int, scale_bytes: int) -> str:
    """The group that multiplies codes of `bits` bits in groups of `width` inputs, with scales of so many bytes."""
    return f"{WEIGHTS}-{bits}-{width}-{scale_bytes}"


def run_group(name: str) -> None:
    """Compile or load a group's kernels."""
    if name == ATTENTION:
        from decoding.attention import exact

        exact.warm_up()
    elif name == LAYERS:
        from decoding.kernels.cpu import rows, team
        from decoding.kernels.cpu.products.panels import multiply_floats
        from decoding.kernels.cpu.program import compiled

        team.warm_up()
        for share in (rows.normalise_floats, rows.rotate_floats, rows.gate_floats, rows.add_floats, rows.look_up):
            compiled(share)
        compiled(multiply_floats)
    elif name == PLAIN:
        from decoding.drafting.one_tree import prediction
        from decoding.sampling import logits_processors, logprobs, sampler, top_tokens

        for module in (sampler, top_tokens, logprobs, logits_processors, prediction):
            module.warm_up()
    elif name.startswith(WEIGHTS):
        from decoding.kernels.cpu.products.grouped.layout import Layout
        from decoding.kernels.cpu.products.grouped.lookup import look_up_groups
        from decoding.kernels.cpu.products.grouped.multiplying import SHARES
        from decoding.kernels.cpu.products.grouped.records import round_blocks
        from decoding.kernels.cpu.program import compiled

        for share in (SHARES[Layout(*map(int, name.split("-")[1:]))], round_blocks, look_up_groups):
            compiled(share)
    else:
        from decoding.engine.compiling import drafters

        drafters.warm_up(name)
