"""transformers' `generate` as a peer: plain, with an assistant model, and with its prompt lookup."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

LOOKUP_TOKENS = 10  # as in transformers' own guide


class Peer:
    version = transformers.__version__

    def __init__(self, options: dict[str, Any]) -> None:
        """Raises ValueError for int8, which it supports on GPUs only, and for GGUF files."""
        if options["dtype"] == "int8":
            raise ValueError("transformers has no int8 weights for the CPU")
        if options["dtype"] == "gguf":
            raise ValueError("transformers would unpack a GGUF file to float32")
        torch.set_num_threads(options["threads"])
        dtype = getattr(torch, options["dtype"])
        self._model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
        self._model.generation_config.eos_token_id = None  # a task names its own
        self._draftings: dict[str, dict[str, Any]] = {
            "plain": {},
            "prompt lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }
        if options["draft_model"]:
            assistant = AutoModelForCausalLM.from_pretrained(options["draft_model"], dtype=dtype).eval()
            self._draftings["assistant model"] = {"assistant_model": assistant}
        self.draftings = list(self._draftings)

    def answer(self, task: dict[str, Any], on_token: Callable[[], None]) -> list[int]:
        prompt = torch.tensor([task["prompt"]])
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=task["max_tokens"],
            do_sample=False,
            eos_token_id=task["end_tokens"] or None,
            pad_token_id=0,
            streamer=_FirstToken(on_token),
            **self._draftings[task["drafting"]],
        )
        tokens: list[int] = output[0, prompt.shape[1] :].tolist()
        return tokens


class _FirstToken(BaseStreamer):  # type: ignore[misc]
    """Receives the prompt, then every token."""

    def __init__(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token
        self._has_prompt = False

    def put(self, _value: torch.Tensor) -> None:
        if self._has_prompt:
            self._on_token()
        self._has_prompt = True

    def end(self) -> None:
        pass
