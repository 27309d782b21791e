"""Owns the words of the model card and the evaluation file.

Does not know how the numbers were measured. Invariant: every number in the card comes from the `Account` it is given.
"""

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from decoding.training.evaluate import Scores
from decoding.training.recipe import Recipe


@dataclass(frozen=True)
class ModelAccount:
    """The facts about one of the two models."""

    num_parameters: int
    num_steps: int
    num_tokens: int
    seconds: float
    losses: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The facts for the evaluation file."""
        return {
            "parameters": self.num_parameters,
            "steps": self.num_steps,
            "training_tokens": self.num_tokens,
            "training_seconds": round(self.seconds),
            "held_out_loss": self.losses,
        }


@dataclass(frozen=True)
class Account:
    """The facts about a finished run."""

    recipe: Recipe
    seed: int
    device: str
    num_bytes: int
    target: ModelAccount
    draft: ModelAccount
    scores: Scores
    draft_scores: Scores
    agreement: dict[str, float]


def write_account(account: Account, folder: Path) -> None:
    """Writes `evaluation.json` and the model card `README.md` into the model folder."""
    evaluation = {
        "seed": account.seed,
        "held_out_problems": account.recipe.num_problems,
        "held_out_prompts_of_other_skills": account.recipe.num_other_prompts,
        "target": account.target.to_dict() | {"scores": account.scores.to_dict()},
        "draft": account.draft.to_dict() | {"scores": account.draft_scores.to_dict()},
        "draft_agrees_with_target": account.agreement,
        "versions": versions(),
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(account), encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions of the programs that a repetition of the run needs."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _card(account: Account) -> str:
    return "\n".join([_HEAD, _sizes(account), _skills(account), _LIMITS, _making(account), _LICENCE])


_HEAD = """---
license: apache-2.0
language: [en]
library_name: transformers
pipeline_tag: text-generation
---
# Gosling

Gosling is the very small language model that comes with Gander, so that the server, its tests and its benchmarks have a
trained model at hand without a download. It is a Llama-style model (`LlamaForCausalLM`, grouped-query attention, tied
embeddings) with its own byte-level tokenizer in which every digit is one token. `draft/` holds a smaller model with the
same tokenizer, for speculative decoding.

It has three skills: it continues Python with repeated structure, it solves short word problems step by step up to a
line such as `#### 42`, and it tells very short stories and takes short chat turns.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("decoding/gosling")
model = AutoModelForCausalLM.from_pretrained("decoding/gosling")
draft = AutoModelForCausalLM.from_pretrained("decoding/gosling/draft")
prompt = tokenizer("Question: Tom has 12 apples. He buys 7 apples. Then he loses 4 apples. "
                   "How many apples does Tom have now?\\nAnswer:", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, assistant_model=draft, max_new_tokens=100)[0]))
```

The tokenizer adds nothing to a text: plain completions start at the first word, and a text ends with `<|endoftext|>`.
A chat is `<|user|>...<|end|><|assistant|>...<|end|>` (the chat template writes it). Both end tokens stop generation.
"""


def _sizes(account: Account) -> str:
    rows = [
        f"| {name} | {model.num_parameters:,} | {shape.num_layers} x {shape.width}, {shape.num_heads} heads, "
        f"{shape.num_kv_heads} kv heads | {model.losses['code']:.3f} | {model.losses['reasoning']:.3f} "
        f"| {model.losses['stories']:.3f} |"
        for name, model, shape in (
            ("target", account.target, account.recipe.target_shape),
            ("draft", account.draft, account.recipe.draft_shape),
        )
    ]
    return "\n".join(
        [
            "## Sizes and held-out loss",
            "",
            "Loss in nats for each learned token, on documents that no training step saw.",
            "",
            "| model | parameters | shape | code | reasoning | stories |",
            "|---|---:|---|---:|---:|---:|",
            *rows,
            "",
            f"All files together: {account.num_bytes / 1e6:.1f} MB (weights in 16-bit floats). Context: "
            f"{account.recipe.target_shape.context_len} positions, trained on rows of up to "
            f"{max(stage.row_len for stage in account.recipe.target_plan.stages)} tokens.",
            "",
        ]
    )


def _skills(account: Account) -> str:
    told = {
        "reasoning_correct": "word problems with the right answer line",
        "reasoning_ended": "word problems ended by the end token",
        "code_ended": "code ended by the end token",
        "code_parses": "code that ended and, with its prompt, parses",
        "code_exact": "code that is the expected text to the last character",
        "code_lines_as_expected": "lines of code as expected",
        "stories_ended": "stories ended by the end token",
        "stories_without_loop": "stories without a repeated run of 8 words",
        "stories_consistent": "stories with no name and no animal that is not from its beginning",
    }
    target, draft = account.scores.to_dict(), account.draft_scores.to_dict()
    rows = [f"| {words} | {target[name]:.1%} | {draft[name]:.1%} |" for name, words in told.items()]
    agreement = ", ".join(f"{skill} {share:.1%}" for skill, share in account.agreement.items())
    return "\n".join(
        [
            "## Held-out checks",
            "",
            f"Greedy, {account.recipe.num_problems} word problems whose numbers no training problem of the family has, "
            f"and {account.recipe.num_other_prompts} prompts of each other skill (`prompts.py`, seed 0). "
            "The tables among the code prompts hold random values, so not every line of code can be foreseen.",
            "",
            "| check | target | draft |",
            "|---|---:|---:|",
            *rows,
            "",
            f"Along the target's own greedy text the draft's first choice is the target's for: {agreement}.",
            "",
        ]
    )


_LIMITS = """## What it cannot do

It knows a few dozen facts, the eleven families of word problems in `word_problems.py`, the plots in `plots.py`, the
program forms in `programs.py` and `function_forms.py`, and little beyond. Other questions get fluent nonsense. Numbers
above about 200, other wordings of a problem and free conversation are outside what it learned. It was not made safe
for any use with people; it is a test piece. No benchmark data is in its corpus.
"""


def _making(account: Account) -> str:
    models = [
        f"- {name}: {model.num_steps:,} steps, {model.num_tokens / 1e6:.1f}M tokens, {model.seconds / 60:.0f} minutes "
        f"({model.num_tokens / max(model.seconds, 1):,.0f} tokens a second)"
        for name, model in (("target", account.target), ("draft", account.draft))
    ]
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return "\n".join(
        [
            "## How it was made",
            "",
            "```",
            f"python -m decoding.training.gosling --seed {account.seed}",
            "```",
            "",
            f"The command makes the corpus ({account.recipe.corpus_tokens / 1e6:.0f}M tokens), the tokenizer, both "
            f"models, this card and `evaluation.json`. On {account.device}, with {used}:",
            "",
            *models,
            "",
            "Muon for the matrices and AdamW for the rest, a warm-up, a stable stretch and a linear decay; all numbers "
            "are in `decoding/training/recipe.py`. The target learned the corpus, then practised for "
            f"{account.recipe.practice_plan.num_steps} steps on a mixture of which "
            f"{account.recipe.practice_shares['drills']:.0%} are bare equations. The draft learned the text first and "
            f"from step {account.recipe.draft_plan.learns_from_target_at} on the target's probabilities. Questions and "
            "user turns are read but not learned. The split goes by a hash: of the family and the numbers for word "
            "problems, of the text of each program, function, library piece and story. Bare equations are not split.",
            "",
        ]
    )


_LICENCE = """## Licence

Weights, tokenizer and generated corpus: Apache-2.0, as the rest of Gander. About a tenth of the training text is the
source of the Python standard library, read from the running interpreter: copyright Python Software Foundation, under
the PSF licence version 2 (https://docs.python.org/3/license.html). The model may repeat short pieces of it.
"""
