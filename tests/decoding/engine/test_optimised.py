"""`python -O` runs the same engine without its checks: drafted replies are the plain ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
METHODS = ("none", "spine", "stand", "dynamic", "auto")
PROGRAM = """
import json, sys
from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from tests.asking import ask, encode

engine = load_engine(EngineConfig(max_model_len=600, kv_slots=6000, threads=1))
code = encode("def add(a, b):\\n    return a + b\\n\\ndef sub(a, b):\\n    return a - b\\n\\n")
words = encode("Describe the thing as JSON.\\n")
schema = Grammar("json_schema", '{"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 8}')
drafts = []
for name, prompt, grammar, prediction in (
    ("code", code, None, None), ("predicted", code, None, code), ("grammar", words, schema, None)
):
    for method in sys.argv[1:]:
        asked = SamplingParams(max_tokens=50, temperature=0.8, seed=7, grammar=grammar)
        reply = ask(engine, prompt, asked, method, prediction, max_nodes=8)
        engine.pool.check_integrity()
        drafts.append((name, reply.tokens, reply.stats.counts.drafted, reply.stats.counts.accepted))
print(json.dumps({"checks": __debug__, "held": engine.pool.num_held, "drafts": drafts}))
"""


@pytest.mark.slow
def test_drafted_replies_are_the_plain_ones_where_asserts_are_left_out() -> None:
    command = [sys.executable, "-O", "-c", PROGRAM, *METHODS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout
    told = json.loads(said.splitlines()[-1])
    assert (told["checks"], told["held"]) == (False, 0)
    for name in ("code", "predicted", "grammar"):
        replies = [tokens for kind, tokens, _, _ in told["drafts"] if kind == name]
        assert replies == [replies[0]] * len(METHODS)
        assert len(replies[0]) > 8
    drafted, accepted = (sum(each[place] for each in told["drafts"]) for place in (2, 3))
    assert 0 < accepted < drafted
