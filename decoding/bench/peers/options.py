"""The flags of `gander bench peers`. Owns names and defaults; measures nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from decoding.bench.options import names
from decoding.bench.peers.rounds import OURS
from decoding.process.machine import cores
from decoding.training.public_prompts import PROMPT_SETS

CHILDREN = Path(__file__).parent / "children"
ADAPTERS = {
    OURS: CHILDREN / "gander_peer.py",
    "transformers": CHILDREN / "transformers_peer.py",
    "llama.cpp": CHILDREN / "llama_cpp_peer.py",
    "openvino-genai": CHILDREN / "openvino_peer.py",
}
DESCRIPTION = "Compare our engine with others on the same weights, prompts and threads, in interleaved rounds."
PARTS = ("plain", "drafted", "perplexity")
DTYPES = ("float32", "bfloat16", "int8")
GGUF = "gguf"  # in the place of a dtype: as the file has its weights
CHATS = ("gsm8k", "humaneval", "edit")
WINDOW_LEN = 512  # tokens


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench peers", description=DESCRIPTION)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all that the options allow")
    add("--peers", type=names, default=tuple(ADAPTERS), help=f"apart by commas, of {', '.join(ADAPTERS)}")
    add(
        "--interpreter",
        type=_interpreter,
        action="append",
        default=[],
        metavar="PEER=PYTHON",
        help="of one installed elsewhere",
    )
    add("--model", type=Path, metavar="FOLDER", help="a folder instead of the 110M of random weights")
    add("--draft-model", type=Path, metavar="FOLDER", help="drafted: a draft model for peers that take one")
    add("--gguf", type=Path, metavar="FILE", help="a GGUF file, which all load as it is, instead of a folder")
    add("--draft-gguf", type=Path, metavar="FILE", help="drafted: its draft model")
    add("--data", type=Path, metavar="FOLDER", help="drafted: the folder of prompt files")
    add("--text", type=Path, metavar="FILE", help="perplexity: a text, or JSON lines with a `prompt` each")
    add("--text-tokens", type=int, default=30_000, help="perplexity: of the text, from its beginning")
    add("--dtypes", type=names, default=DTYPES, help="of a folder: kinds of weights, apart by commas")
    known = ", ".join(PROMPT_SETS)
    add(
        "--workloads",
        type=names,
        default=CHATS,
        help=f"drafted: of {known}, apart by commas; default {','.join(CHATS)}",
    )
    add("--rounds", type=int, default=5, help="a prompt each")
    add("--prompt-len", type=int, default=128, help="plain: tokens of a prompt")
    add("--max-tokens", type=int, default=128, help="new tokens of a reply; drafted: at the most")
    add("--threads", type=int, default=cores().usable, help="of everybody")
    add("--patience", type=float, default=120.0, help="seconds of waiting for idle moments, in all")
    add("--busy", action="store_true", help="go on when no idle moment has come, instead of ending")
    add("--cache", type=Path, help="a folder that keeps converted weights; default: one that is deleted")
    add("--out", type=Path, default=Path("figures"), help="the folder for peers.md and peers.json")
    return _checked(parser, parser.parse_args(argv))


def _checked(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> argparse.Namespace:
    """The options with the defaults that depend on others. Ends the process where they do not go together."""
    unknown = [*set(chosen.parts).difference(PARTS), *set(chosen.peers).difference(ADAPTERS)]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join((*PARTS, *ADAPTERS))}")
    if (chosen.gguf and chosen.model) or (chosen.draft_gguf and not chosen.gguf):
        parser.error("--gguf takes the place of --model, and --draft-gguf is a draft model of its")
    if chosen.gguf:
        chosen.model, chosen.draft_model, chosen.dtypes = chosen.gguf, chosen.draft_gguf, (GGUF,)
    if ((chosen.draft_model or chosen.data) and not chosen.model) or (chosen.text and not chosen.gguf):
        parser.error("drafts and --data need --model or --gguf, and --text needs --gguf")
    has_what_it_needs = {"plain": True, "drafted": bool(chosen.data), "perplexity": bool(chosen.text)}
    chosen.parts = chosen.parts or [part for part in PARTS if has_what_it_needs[part]]
    if not all(has_what_it_needs[part] for part in chosen.parts):
        parser.error("the part drafted needs --data, and perplexity --text")
    return chosen


def _interpreter(text: str) -> tuple[str, str]:
    peer, separator, path = text.partition("=")
    if peer not in ADAPTERS or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not PEER=PYTHON with a peer of {', '.join(ADAPTERS)}")
    return peer, path
