"""openvino-genai as a peer: plain, with a draft model, and with its prompt lookup. optimum-intel converts the weights.

Needs the packages openvino-genai and optimum-intel[openvino].
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}  # precision of the computation
DRAFT_TOKENS = 5  # as in its own samples, for draft model and prompt lookup
LOOKUP_NGRAM = 3


class Peer:
    version = openvino_genai.__version__

    def __init__(self, options: dict[str, Any]) -> None:
        """Raises ValueError for GGUF files, whose weights it would pack anew."""
        if options["dtype"] not in PRECISIONS:
            raise ValueError(f"openvino-genai is given no {options['dtype']} weights")
        self._options, cache = options, Path(options["cache"])
        self._folder = converted(Path(options["model"]), options["dtype"], cache)
        self.draftings = ["plain", "prompt lookup"]
        if options["draft_model"]:
            self._draft_folder = converted(Path(options["draft_model"]), options["dtype"], cache)
            self.draftings.append("draft model")
        self._pipelines = {"plain": self._pipeline("plain")}

    def answer(self, task: dict[str, Any], on_token: Callable[[], None]) -> list[int]:
        drafting = task["drafting"]
        if drafting not in self._pipelines:
            self._pipelines[drafting] = self._pipeline(drafting)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = task["max_tokens"]
        config.do_sample = False
        config.ignore_eos = not task["end_tokens"]
        config.eos_token_id = (task["end_tokens"] or [0])[0]  # required even if it is ignored
        config.stop_token_ids = set(task["end_tokens"])
        if drafting != "plain":
            config.num_assistant_tokens = DRAFT_TOKENS
        if drafting == "prompt lookup":
            config.max_ngram_size = LOOKUP_NGRAM
        prompt = openvino.Tensor(np.array([task["prompt"]], np.int64))
        inputs = openvino_genai.TokenizedInputs(prompt, openvino.Tensor(np.ones((1, len(task["prompt"])), np.int64)))
        result = self._pipelines[drafting].generate(inputs, config, _FirstToken(on_token))
        return list(result.tokens[0])

    @property
    def _properties(self) -> dict[str, Any]:
        precision = PRECISIONS[self._options["dtype"]]
        chosen = {"INFERENCE_NUM_THREADS": self._options["threads"], "INFERENCE_PRECISION_HINT": precision}
        if self._options["dtype"] != "int8":  # whose defaults round activations and the cache as well
            chosen |= {"KV_CACHE_PRECISION": precision, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
        return chosen

    def _pipeline(self, drafting: str) -> Any:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # prompts repeat
        more: dict[str, Any] = {"prompt_lookup": True} if drafting == "prompt lookup" else {}
        if drafting == "draft model":
            more = {"draft_model": openvino_genai.draft_model(self._draft_folder, "CPU", **self._properties)}
        return openvino_genai.LLMPipeline(self._folder, "CPU", scheduler_config=scheduler, **more, **self._properties)


class _FirstToken(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Receives every token, sometimes several at once."""

    def __init__(self, on_token: Callable[[], None]) -> None:
        super().__init__()
        self._on_token = on_token

    def write(self, _tokens: Any) -> Any:
        self._on_token()
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def converted(folder: Path, dtype: str, cache: Path) -> Path:
    """Convert a Hugging Face folder to OpenVINO's format, with its tokenizer, unless that is done already."""
    out = cache / f"{folder.name}-{dtype}-openvino"
    if out.is_dir():
        return out
    # Only here: they take seconds to import.
    from openvino_tokenizers import convert_tokenizer
    from optimum.exporters.openvino import main_export
    from transformers import AutoTokenizer

    partial = cache / f"{out.name}.partial"
    main_export(
        str(folder),
        output=partial,
        task="text-generation-with-past",
        weight_format={"float32": "fp32", "bfloat16": "fp16", "int8": "int8"}[dtype],
    )
    tokenizers = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, tokenizer in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
        openvino.save_model(tokenizer, partial / f"openvino_{name}.xml")  # a pipeline that drafts insists on them
    partial.rename(out)
    return out
