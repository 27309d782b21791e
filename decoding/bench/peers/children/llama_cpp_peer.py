"""llama.cpp as a peer, through llama-cpp-python: plain, and with its prompt lookup. Writes weights as GGUF, or loads a
GGUF file as it is.

Writes models of the types llama and qwen3. Needs the package llama-cpp-python, and gguf to write weights.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

LOOKUP_TOKENS = (2, 10)  # its guide's value for CPUs, and its default
SCORING = "scoring"  # in the place of a way of drafting
FILE_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
ARCHITECTURES = {"llama": "LLAMA", "qwen3": "QWEN3"}
SAFETENSORS_DTYPES: dict[str, Any] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class Peer:
    version = llama_cpp.__version__

    def __init__(self, options: dict[str, Any]) -> None:
        """Raises ValueError for an unsupported type of model."""
        self._options = options
        self._path = Path(options["model"]) if options["dtype"] == "gguf" else _written(options)
        self._drafts: dict[str, LlamaPromptLookupDecoding | None] = {"plain": None}
        for number in LOOKUP_TOKENS:
            self._drafts[f"prompt lookup, {number}"] = LlamaPromptLookupDecoding(num_pred_tokens=number)
        self._models: dict[str, llama_cpp.Llama] = {}
        self.draftings = list(self._drafts)

    def answer(self, task: dict[str, Any], on_token: Callable[[], None]) -> list[int]:
        model = self._model(task["drafting"])
        model.reset()
        model.n_tokens = 0  # otherwise it would reuse the prefix that prompts have in common
        tokens: list[int] = []
        for token in model.generate(task["prompt"], temp=0.0):
            on_token()
            tokens.append(token)
            if len(tokens) == task["max_tokens"] or token in task["end_tokens"]:
                break
        return tokens

    def nats(self, window: list[int]) -> float:
        model = self._model(SCORING)
        model.reset()
        model.n_tokens = 0  # as in `answer`
        model.eval(window)
        nats = 0.0
        for place, token in enumerate(window[1:]):
            logits = np.asarray(model.scores[place], np.float64)
            highest = logits.max()
            nats += np.log(np.exp(logits - highest).sum()) + highest - logits[token]
        return float(nats)

    def _model(self, drafting: str) -> llama_cpp.Llama:
        """A model for each way of drafting and for scoring, on the same mapped weights; all but the plain one compute
        all tokens' logits."""
        if drafting not in self._models:
            threads, is_float32 = self._options["threads"], self._options["dtype"] == "float32"
            kv_type = llama_cpp.GGML_TYPE_F32 if is_float32 else llama_cpp.GGML_TYPE_F16
            self._models[drafting] = llama_cpp.Llama(
                str(self._path),
                n_ctx=self._options["max_len"],
                n_threads=threads,
                n_threads_batch=threads,
                n_gpu_layers=0,
                type_k=kv_type,
                type_v=kv_type,
                draft_model=self._drafts.get(drafting),
                logits_all=drafting == SCORING,
                verbose=False,
            )
        return self._models[drafting]


def _written(options: dict[str, Any]) -> Path:
    """The folder's weights as GGUF, unless the cache has them already."""
    path = Path(options["cache"]) / f"{Path(options['model']).name}-{options['dtype']}.gguf"
    if not path.is_file():
        partial = path.with_suffix(".partial")
        write_gguf(Path(options["model"]), partial, FILE_TYPES[options["dtype"]])
        partial.rename(path)
    return path


def write_gguf(folder: Path, out: Path, file_type: str) -> None:
    """Write a Hugging Face folder's weights to a GGUF file, matrices as `file_type`, vectors as float32."""
    import gguf  # only here: a GGUF file is loaded without it

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] not in ARCHITECTURES:
        raise ValueError(f"only {' and '.join(ARCHITECTURES)} can be written as GGUF, not {config['model_type']}")
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config["model_type"]])
    matrix_kind = getattr(gguf.GGMLQuantizationType, file_type)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[architecture])
    _write_config(writer, config)
    _write_vocabulary(writer, folder, config["vocab_size"])
    for name, weight in _tensors(folder):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if config["model_type"] == "llama":
            weight = _interleaved(name, weight, config)
        kind = matrix_kind if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(written, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: Any, config: dict[str, Any]) -> None:
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or num_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    if isinstance(config.get("eos_token_id"), int):
        writer.add_eos_token_id(config["eos_token_id"])


def _write_vocabulary(writer: Any, folder: Path, vocab_size: int) -> None:
    """Write the texts of a byte-level tokenizer's tokens, so that `llama-server` can answer with text. The
    pre-tokenizer is not the model's own: prompts come as token ids."""
    import gguf  # as in `write_gguf`

    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in file["added_tokens"]}
    texts = {number: text for text, number in file["model"]["vocab"].items()} | special
    kinds = [gguf.TokenType.NORMAL if number in texts else gguf.TokenType.UNUSED for number in range(vocab_size)]
    for number in special:
        kinds[number] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([texts.get(number, f"[unused {number}]") for number in range(vocab_size)])
    writer.add_token_types(kinds)
    pairs = file["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in pairs])


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and float32 arrays of all safetensors files: 8 bytes of length, a JSON header, the data."""
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        start = 8 + int(data[:8].view("<u8")[0])
        header = json.loads(data[8:start].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, end = entry["data_offsets"]
            values = data[start + first : start + end].view(SAFETENSORS_DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            yield name, np.ascontiguousarray(values.astype(np.float32).reshape(entry["shape"]))


def _interleaved(name: str, weight: Any, config: dict[str, Any]) -> Any:
    """Query and key rows in llama.cpp's order, which rotates neighbouring pairs where Hugging Face rotates halves."""
    num_heads = config["num_attention_heads"]
    if "k_proj" in name:
        num_heads = config.get("num_key_value_heads") or num_heads
    elif "q_proj" not in name:
        return weight
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
