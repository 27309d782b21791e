"""Tunes STAND's static draft tree: `gander tune-tree --model M --data FILE --samples 30 --nodes 80`.

Counts how often each slot of the paper's 625-node tree lies on an accepted path (STAND, section 4.2). The counts are
written to disk after every sample, so that a stopped run can continue. Invariant: a sample's counts depend on the
sample alone, since its trajectories share a session of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from decoding.config import EngineConfig
from decoding.core.files.output import check_output, is_json_of, write_output
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.drafting.stand.stand import StandDrafter
from decoding.drafting.stand.static_tree import StaticTree, is_tree, write_tree
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve
from decoding.stores.session import Session
from decoding.training.first_tree import initial_tree, pruned
from decoding.training.texts.prompts import held_out_prompts

PROMPT_SEED = 2  # no benchmark uses the prompts of this seed
FIELDS = ("prompt", "question", "problem")  # fields of a JSON line that may hold the prompt


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a tuning run. Counts of another plan are discarded."""

    model: str
    data: str
    samples: int
    trajectories: int
    max_tokens: int
    temperature: float


class Counts(msgspec.Struct, kw_only=True):
    """Counts so far: samples, acceptances of each slot, tokens and forwards."""

    plan: Plan
    samples: int = 0
    slots: list[int] = []
    tokens: int = 0
    forwards: int = 0


class CountingDrafter(StandDrafter):
    """Counts its accepted slots of the whole first tree into `counts`."""

    def __init__(self, request: Request, session: Session, tree: StaticTree, counts: Counts) -> None:
        super().__init__(request, session, tree)
        self._counts = counts

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        self._counts.forwards += 1
        self._counts.tokens += len(verdict.tokens)
        for slot in self.slots_of(verdict):
            self._counts.slots[slot] += 1
        super().observe(tree, verdict, top)


def count_sample(engine: Engine, tree: StaticTree, prompt: NDArray[np.int32], counts: Counts) -> None:
    """Decode one prompt's trajectories one after the other, in a session of their own."""
    number, plan = counts.samples, counts.plan
    shape = SpeculationParams(method="stand", max_nodes=len(tree) - 1, without=frozenset(("best_first",)))
    for trajectory in range(plan.trajectories):
        seed = number * plan.trajectories + trajectory
        request = Request(
            id=f"tune-{seed}",
            prompt=prompt,
            sampling=SamplingParams(max_tokens=plan.max_tokens, temperature=plan.temperature, seed=seed),
            speculation=shape,
            eos_token_ids=engine.model.eos_token_ids,
            session_id=f"tune-{number}",
        )
        engine.add(request, lambda asked, sources: CountingDrafter(asked, sources.stores, tree, counts))
        while engine.has_work:
            engine.step()
    counts.samples += 1


def conclude(tree: StaticTree, counts: Counts, num_nodes: int) -> StaticTree:
    """The tree of the best `num_nodes` nodes, with a record of how it was made."""
    made: dict[str, str | int | float] = {
        "by": "gander tune-tree",
        **msgspec.structs.asdict(counts.plan),
        "first_tree": len(tree),
        "acceptance_length": round(counts.tokens / max(1, counts.forwards), 3),
    }
    return pruned(tree, counts.slots, num_nodes, made)


def read_prompts(data: Path | None, count: int) -> list[str]:
    """`count` prompts from a file of JSON lines or plain lines, or the bundled model's own reasoning problems."""
    if data is None:
        return held_out_prompts("reasoning", count, PROMPT_SEED)
    prompts = []
    for line in data.read_text(encoding="utf-8").splitlines()[:count]:
        record = json.loads(line) if line.startswith("{") else {"prompt": line}
        prompts.append(next(str(record[field]) for field in FIELDS if field in record))
    return prompts


def load_counts(path: Path, plan: Plan, num_slots: int) -> Counts:
    """The counts of an earlier run of the same plan, or empty counts."""
    if path.is_file():
        counts = msgspec.json.decode(path.read_bytes(), type=Counts)
        if counts.plan == plan:
            return counts
    return Counts(plan=plan, slots=[0] * num_slots)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander tune-tree", description="Tune STAND's static tree.")
    add = parser.add_argument
    add("--model", default="gosling", help="the bundled model, or a folder with a model and its tokenizer.json")
    add("--data", type=Path, help="prompts, a JSON object or a text a line; default: the model's own word problems")
    add("--samples", type=int, default=30, help="prompts to decode")
    add("--trajectories", type=int, default=4, help="replies to each prompt, sharing what they teach")
    add("--nodes", type=int, default=80, help="size of the tree to keep, root not counted")
    add("--max-tokens", type=int, default=256)
    add("--temperature", type=float, default=0.6)
    add("--out", type=Path, default=Path("tree.json"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Tune and write the tree, and beside it the counts, from which trees of other sizes can be made."""
    chosen = parse(argv)
    plan = Plan(
        model=Path(chosen.model).name,
        data=chosen.data.name if chosen.data else "held-out word problems",
        samples=chosen.samples,
        trajectories=chosen.trajectories,
        max_tokens=chosen.max_tokens,
        temperature=chosen.temperature,
    )
    tree, kept = initial_tree(), chosen.out.with_suffix(".counts.json")
    check_output(chosen.out, is_tree)
    check_output(kept, is_json_of(Counts))
    counts = load_counts(kept, plan, len(tree))
    config = EngineConfig(prefix_cache=False, model=chosen.model, max_nodes=len(tree), max_batch_rows=2 * len(tree))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    if counts.samples < plan.samples:
        engine = load_engine(config)
        tokenizer = Tokenizer.from_file(str(Path(resolve(config)[1]) / "tokenizer.json"))
        room = engine.model.max_model_len - plan.max_tokens
        prompts = [tokenizer.encode(text).ids[:room] for text in read_prompts(chosen.data, plan.samples)]
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bars:
            bar = bars.add_task("samples", total=len(prompts), completed=counts.samples)
            for ids in prompts[counts.samples :]:
                count_sample(engine, tree, np.array(ids, np.int32), counts)
                write_output(kept, msgspec.json.encode(counts), is_json_of(Counts))
                bars.advance(bar)
    tuned = conclude(tree, counts, chosen.nodes)
    write_tree(chosen.out, tuned)
    Console().print(f"{chosen.out}: {len(tuned) - 1} nodes, {tuned.depth()} deep; {tuned.made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
