"""Runs lm-eval against the server: it scores continuations to their last token, and generates answers.

It was run with lm-eval 0.4.13:

    python -m venv clients && clients/bin/pip install 'lm-eval[api]' transformers
    gander serve & until curl -sf http://127.0.0.1:8000/ready; do sleep 1; done
    clients/bin/python docs/examples/evaluation_harness.py
    clients/bin/python docs/examples/evaluation_harness.py --tokenizer decoding/gosling

The first tokenizes through the server (/tokenize, /tokenizer_info), which also works where the model is a GGUF file.
The second has the tokenizer's own files.

The harness scores a continuation by echoing it, generating one more token and dropping that one. The right answers here
are the model's own replies, after which it ends, so the dropped token is the end token. The harness's score of each is
compared with a direct scoring of the same text without drafting.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from openai import OpenAI

OPENINGS = [
    "Once upon a time there was a fox.",
    "Question: Tom has 12 apples and buys 7 more. How many apples has he?\nAnswer:",
]
WRONG = " It rained."
TOLERANCE = 1e-3  # nats, for the sum over a whole continuation


def tasks(folder: Path, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One task that scores choices and one that generates."""
    file = folder / "documents.jsonl"
    file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    data = {"data_files": {"test": str(file)}, "cache_dir": str(folder / "cache")}
    shared = {"dataset_path": "json", "dataset_kwargs": data, "test_split": "test", "doc_to_text": "{{question}}"}
    scored = {"task": "scored", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": 0}
    written = {"task": "written", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}"}
    written |= {"generation_kwargs": {"until": ["<|never|>"], "max_gen_toks": 400, "temperature": 0.0}}
    return [
        {**shared, **scored, "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
        {**shared, **written, "target_delimiter": "", "metric_list": [{"metric": "exact_match"}]},
    ]


def plain_score(client: OpenAI, model: str, question: str, choice: str) -> float:
    """The continuation's log probability in nats, from a request that generates and drafts nothing."""
    reply = client.completions.create(
        model=model,
        prompt=question + choice,
        echo=True,
        logprobs=0,
        max_tokens=0,
        extra_body={"speculation": {"method": "none"}},
    )
    logprobs: Any = reply.choices[0].logprobs
    pairs = zip(logprobs.text_offset, logprobs.token_logprobs, strict=True)
    return sum(logprob for offset, logprob in pairs if offset >= len(question))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="gosling")
    parser.add_argument(
        "--tokenizer", help="A folder or name that transformers knows; the server's where it is left out"
    )
    arguments = parser.parse_args()
    harness = {"base_url": f"{arguments.url}/completions", "model": arguments.model, "max_length": 2048}
    harness |= {"tokenizer_backend": "remote", "num_concurrent": 4}
    if arguments.tokenizer is not None:
        harness |= {"tokenizer_backend": "huggingface", "tokenizer": arguments.tokenizer}
    with OpenAI(base_url=arguments.url, api_key="none") as client, tempfile.TemporaryDirectory() as folder:
        documents = []
        for opening in OPENINGS:
            reply = client.completions.create(model=arguments.model, prompt=opening, max_tokens=400, temperature=0)
            assert reply.choices[0].finish_reason == "stop", "the model shall end here"
            documents.append({"question": opening, "choices": [reply.choices[0].text, WRONG]})
        done: Any = lm_eval.simple_evaluate(
            model="local-completions", model_args=harness, tasks=tasks(Path(folder), documents), bootstrap_iters=0
        )
        for sample in done["samples"]["scored"]:
            question = sample["doc"]["question"]
            for choice, response in zip(sample["doc"]["choices"], sample["resps"], strict=True):
                scored, wanted = float(response[0][0]), plain_score(client, arguments.model, question, choice)
                assert abs(scored - wanted) < TOLERANCE, (choice, scored, wanted)
                sys.stdout.write(f"{choice[:40]!r}: {scored:.4f} nats, plain {wanted:.4f}\n")
    accuracy = done["results"]["scored"]["acc,none"]
    matches = done["results"]["written"]["exact_match,none"]
    assert (accuracy, matches) == (1.0, 1.0), done["results"]
    sys.stdout.write(f"scored: accuracy {accuracy}; written: exact matches {matches}\n")


if __name__ == "__main__":
    main()
