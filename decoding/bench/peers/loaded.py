"""Our engine and llama.cpp with one model, each in its own process, and what benchmarks ask both of them alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from decoding.bench.peers.options import ADAPTERS, GGUF
from decoding.bench.peers.peer_process import PeerFailed, PeerOptions, PeerProcess, PeerTask
from decoding.bench.peers.rounds import OURS, PLAIN
from decoding.process.machine import cores

LLAMA = "llama.cpp"
LOWEST, HIGHEST = 3, 1000  # token ids, which any vocabulary has


def load_both(
    stack: ExitStack,
    model: str,
    max_len: int,
    threads: int | None,
    interpreter: str,
    say: Callable[[str], object],
) -> dict[str, PeerProcess]:
    """The engines that load, by name, until `stack` closes; a sentence says why llama.cpp is left out.

    model: a GGUF file, which llama.cpp loads too, or a folder, or a hub name. max_len: tokens of prompt and reply.
    threads: of both; None lets ours choose, and llama.cpp takes all usable cores. interpreter: of a Python that has
    llama-cpp-python. Raises PeerFailed where ours does not load.
    """
    is_file = model.endswith(".gguf")
    loaded: dict[str, PeerProcess] = {}
    for peer, python in ((OURS, sys.executable), (LLAMA, interpreter)):
        if peer == LLAMA and not is_file:
            say(f"{LLAMA} is left out, since {model} is no GGUF file.")
            continue
        options = PeerOptions(
            model=str(Path(model).absolute()) if Path(model).exists() else model,
            draft_model=None,
            dtype=GGUF if is_file else "float32",
            threads=threads if peer == OURS else threads or cores().usable,
            max_len=max_len,
            cache="",
        )
        try:
            loaded[peer] = stack.enter_context(PeerProcess(ADAPTERS[peer], python, options))
        except PeerFailed as error:
            if peer == OURS:
                raise
            say(f"{peer} is left out: {error}")
    return loaded


def random_prompt(rng: Random, length: int) -> list[int]:
    return [rng.randrange(LOWEST, HIGHEST) for _ in range(length)]


def plain_task(prompt: list[int], num_tokens: int) -> PeerTask:
    """So many tokens, drafted by nobody and ended by none of them."""
    return PeerTask(prompt=prompt, max_tokens=num_tokens, end_tokens=[], drafting=PLAIN)
