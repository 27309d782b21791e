"""Compares our engine with others on the same weights: `gander bench peers`.

Owns options, the choice of peers, and the console. Each engine, ours included, runs in its own process, in rounds.
Invariant: a setting is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoConfig

from decoding.bench.machine import describe_machine
from decoding.bench.peers.folders import draft_folder, random_folder, widened_folder
from decoding.bench.peers.gate import IdleGate, MachineBusy
from decoding.bench.peers.peer_process import PeerFailed, PeerMissing, PeerOptions, PeerProcess
from decoding.bench.peers.rounds import OURS, Ask, Rounds, Setting
from decoding.bench.peers.tables import render_drafted, render_plain
from decoding.bench.tables.report import Report, command_line
from decoding.bench.workload import PromptChoice, load_workloads
from decoding.config import BUNDLED_MODEL
from decoding.core.files.output import claim_folder
from decoding.model.checkpoint import folder_of

CHILDREN = Path(__file__).parent / "children"
ADAPTERS = {
    OURS: CHILDREN / "gander_peer.py",
    "transformers": CHILDREN / "transformers_peer.py",
    "llama.cpp": CHILDREN / "llama_cpp_peer.py",
    "openvino-genai": CHILDREN / "openvino_peer.py",
}
PARTS = ("plain", "drafted")
DTYPES = ("float32", "bfloat16", "int8")
MAX_PROMPT_LEN = 512  # tokens, in the drafted part
MARGIN = 64  # tokens of room after prompt and reply, for drafts past the end


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench peers", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", default=PARTS, metavar="PART", help="plain, drafted; default: both")
    add("--peers", type=_names, default=tuple(ADAPTERS), help=f"apart by commas, of {', '.join(ADAPTERS)}")
    add(
        "--interpreter",
        type=_interpreter,
        action="append",
        default=[],
        metavar="PEER=PYTHON",
        help="of one installed elsewhere",
    )
    add("--model", type=Path, help="plain: a folder instead of the 110M of random weights")
    add("--dtypes", type=_names, default=DTYPES, help="plain: kinds of weights, apart by commas")
    add("--widened", type=int, default=100, help="drafted: million parameters that the bundled model is widened to")
    add("--workloads", type=_names, default=("stories", "code"), help="drafted: apart by commas")
    add("--drafted-dtype", default="float32", choices=DTYPES, help="drafted: the kind of weights")
    add("--rounds", type=int, default=5, help="a prompt each")
    add("--prompt-len", type=int, default=128, help="plain: tokens of a prompt")
    add("--max-tokens", type=int, default=128, help="new tokens of a reply; drafted: at the most")
    add("--threads", type=int, default=os.cpu_count(), help="of everybody")
    add("--patience", type=float, default=120.0, help="seconds of waiting for idle moments, in all")
    add("--busy", action="store_true", help="go on when no idle moment has come, instead of ending")
    add("--cache", type=Path, help="a folder that keeps converted weights; default: one that is deleted")
    add("--out", type=Path, default=Path("docs"), help="the folder for peers.md and peers.json")
    chosen = parser.parse_args(argv)
    unknown = [*set(chosen.parts).difference(PARTS), *set(chosen.peers).difference(ADAPTERS)]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join((*PARTS, *ADAPTERS))}")
    return chosen


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _interpreter(text: str) -> tuple[str, str]:
    peer, separator, path = text.partition("=")
    if peer not in ADAPTERS or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not PEER=PYTHON with a peer of {', '.join(ADAPTERS)}")
    return peer, path


class Contenders(NamedTuple):
    """The peers that take part: adapters and interpreters by the peer's name."""

    adapters: dict[str, Path]
    interpreters: dict[str, str]

    @contextmanager
    def started(self, options: PeerOptions) -> Iterator[tuple[dict[str, PeerProcess], list[str]]]:
        """Start the peers: those that load, and a sentence for each that does not."""
        with ExitStack() as stack:
            running, left_out = dict[str, PeerProcess](), list[str]()
            for name, adapter in self.adapters.items():
                try:
                    process = PeerProcess(adapter, self.interpreters.get(name, sys.executable), options)
                except PeerMissing as error:
                    left_out.append(f"{name} is left out, since it is not installed: {error}")
                except PeerFailed as error:
                    left_out.append(f"{name} is left out: {error}")
                else:
                    running[name] = stack.enter_context(process)
            yield running, left_out


class PeersComparison:
    """One call of the command. cache: a folder for models."""

    def __init__(
        self, chosen: argparse.Namespace, contenders: Contenders, command: str, console: Console, cache: Path
    ) -> None:
        self.chosen = chosen
        self.contenders = contenders
        self.console = console
        self.cache = cache
        self.gate = IdleGate(chosen.patience, chosen.busy)
        threads = "thread" if chosen.threads == 1 else "threads"
        self.report = Report(chosen.out, f"{describe_machine()}, {chosen.threads} {threads}", command, page="peers")

    def run(self) -> int:
        """Measure the chosen parts; return 1 if the machine was never idle."""
        measure: dict[str, Callable[[], None]] = {"plain": self.plain, "drafted": self.drafted}
        try:
            for part in self.chosen.parts:
                measure[part]()
        except MachineBusy as error:
            self.console.print(f"Not measured: {error}.", soft_wrap=True)
            return 1
        return 0

    def plain(self) -> None:
        """Measure plain decoding: random prompts and replies of the full length."""
        chosen, found = self.chosen, list[Setting]()
        folder = chosen.model or random_folder(self.cache)
        vocab_size = AutoConfig.from_pretrained(folder).get_text_config().vocab_size
        numbers = np.random.default_rng(0).integers(3, vocab_size, (chosen.rounds, chosen.prompt_len))
        ask = Ask(prompts=numbers.tolist(), max_tokens=chosen.max_tokens, end_tokens=[])
        for dtype in chosen.dtypes:
            with self.contenders.started(self._options(folder, dtype)) as (running, left_out):
                found.append(self._measure(dtype, ask, running, left_out, plain_only=True))
            self.report.write("plain", render_plain(found), found)

    def drafted(self) -> None:
        """Measure each way of drafting of each peer on prompts of the bundled model's skills."""
        chosen, found = self.chosen, list[Setting]()
        folder = widened_folder(self.cache, chosen.widened)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        choice = PromptChoice(count=chosen.rounds, max_tokens=chosen.max_tokens, max_prompt_len=MAX_PROMPT_LEN)
        end_tokens = AutoConfig.from_pretrained(folder_of(BUNDLED_MODEL)).eos_token_id
        options = self._options(folder, chosen.drafted_dtype, draft_folder(), BUNDLED_MODEL)
        with self.contenders.started(options) as (running, left_out):
            for workload in load_workloads(chosen.workloads, tokenizer, choice, self.console.print):
                prompts = [prompt.tolist() for prompt in workload.prompts]
                ask = Ask(prompts=prompts, max_tokens=chosen.max_tokens, end_tokens=end_tokens)
                found.append(self._measure(workload.name, ask, running, left_out, plain_only=False))
                self.report.write("drafted", render_drafted(found), found)

    def _measure(
        self, name: str, ask: Ask, running: dict[str, PeerProcess], left_out: Sequence[str], plain_only: bool
    ) -> Setting:
        with self.console.status(f"{name}: {', '.join(running)}"):
            setting = Rounds(self.gate, ask).measure(name, running, plain_only, left_out)
        for sentence in setting.left_out:
            self.console.print(f"{name}: {sentence}", soft_wrap=True, markup=False)
        return setting

    def _options(
        self, model: Path, dtype: str, draft_model: Path | None = None, draft_head: str | None = None
    ) -> PeerOptions:
        chosen = self.chosen
        return PeerOptions(
            model=str(model),
            draft_model=str(draft_model) if draft_model else None,
            draft_head=draft_head,
            dtype=dtype,
            threads=chosen.threads,
            max_len=max(chosen.prompt_len, MAX_PROMPT_LEN) + chosen.max_tokens + MARGIN,
            cache=str(self.cache),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen, command = parse(given), command_line("gander bench peers", given)
    contenders = Contenders({name: ADAPTERS[name] for name in chosen.peers}, dict(chosen.interpreter))
    if chosen.cache is not None:
        claim_folder(chosen.cache)
        return PeersComparison(chosen, contenders, command, Console(), chosen.cache.absolute()).run()
    with tempfile.TemporaryDirectory(prefix="gander-peers-") as cache:
        return PeersComparison(chosen, contenders, command, Console(), Path(cache)).run()


if __name__ == "__main__":
    sys.exit(main())
