"""Which projectors of GGUF files (mmproj) are read, and what of their models no file says.

Knows no tensors but one. Invariant: a projector is read with language models of its own family and width alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from decoding.errors import ConfigError
from decoding.model.files.gguf_config import CLIP
from decoding.model.files.gguf_file import GgufFile
from decoding.model.files.gguf_metadata import Fields, Metadata, shown
from decoding.model.vision.tower_metadata import (
    Seen,
    gemma3,
    idefics3,
    pixtral,
    qwen2,
    qwen2_5,
    qwen3,
    three_numbers,
)

TYPE_KEYS = ("clip.projector_type", "clip.vision.projector_type")  # the second where it hears as well
PATCH_MERGER, MERGED = "mm.patch_merger.weight", "mistral3"  # what a Mistral 3 has and a Pixtral has not


@dataclass(frozen=True, slots=True)
class Projector:
    """models: transformers' type by the architecture of the language model's file. seen: of the file, and such a type.
    tokens: which tokens the processor calls how, each by the first of these names that the vocabulary has; image_token
    stands for a row of a picture. others: that a picture's text has. template: of chats, where no file has one."""

    models: Mapping[str, str]
    seen: Callable[[Metadata, str], Seen]
    tokens: Mapping[str, tuple[str, ...]]
    others: tuple[str, ...] = ()
    template: str = ""


def projector_in(file: GgufFile) -> tuple[str, Projector]:
    """The type of a file's projector, and what is known of it. Raises ConfigError where it is none that is read."""
    if file.architecture != CLIP:
        raise ConfigError(f"it is no projector (mmproj): its architecture is {file.architecture!r}")
    if file.metadata.get("clip.has_vision_encoder") is not True:
        raise ConfigError("it has no tower for pictures")
    kind = next((file.metadata[key] for key in TYPE_KEYS if key in file.metadata), None)
    if kind not in PROJECTORS:
        raise ConfigError(
            f"its projector is of type {shown(kind)}; the types that are read are {', '.join(PROJECTORS)}"
        )
    return kind, PROJECTORS[kind]


def model_type_of(file: GgufFile, architecture: str) -> str:
    """transformers' type of the model that the projector and a language model make. Raises ConfigError where they
    belong to different ones."""
    kind, projector = projector_in(file)
    if architecture not in projector.models:
        wanted = " or ".join(projector.models)
        raise ConfigError(
            f"its projector is of type {kind!r}, for a model of architecture {wanted}, not {architecture}"
        )
    return MERGED if PATCH_MERGER in file.tensors else projector.models[architecture]


def seen_by(file: GgufFile, model_type: str, width: int) -> Seen:
    """width: of the language model. Raises ConfigError naming the metadata key or tensor at fault."""
    _, projector = projector_in(file)
    metadata = Metadata(file)
    given = metadata.count("vision.projection_dim")
    if given != width:
        raise ConfigError(
            f"its projector gives {given} numbers for each token of a picture, and the model takes {width}"
        )
    seen = projector.seen(metadata, model_type)
    numbers = {name: three_numbers(metadata, f"vision.{name}") for name in ("image_mean", "image_std")}
    return seen._replace(images=seen.images | numbers)


def _chat(begin: str, turn: str, image: str, end: str, reply: str, names: Fields | None = None) -> str:
    """A template of chats whose contents are texts or lists of parts. turn, reply: before a turn of the role, which
    `names` may call otherwise, and before the model's."""
    role = f"{names or {}!r}.get(message.role, message.role)"
    parts = f"{{% for part in message.content %}}{{% if part.type == 'image' %}}{image}{{% else %}}{{{{ part.text }}}}"
    return (
        f"{begin}{{% for message in messages %}}{turn.replace('ROLE', f'{{{{ {role} }}}}')}"
        f"{{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{parts}{{% endif %}}{{% endfor %}}"
        f"{{% endif %}}{end}{{% endfor %}}{{% if add_generation_prompt %}}{reply}{{% endif %}}"
    )


_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_CHAT = _chat("", "<|im_start|>ROLE\n", _QWEN_IMAGE, "<|im_end|>\n", "<|im_start|>assistant\n")
_QWEN_TOKENS = {"image_token": ("<|image_pad|>",)}
_QWEN_OTHERS = ("<|vision_start|>", "<|vision_end|>")
PROJECTORS = {  # by the file's name for them
    "gemma3": Projector(
        {"gemma3": "gemma3"},
        gemma3,
        {
            # Some converters leave the first out, since no text has it: any token that none has will do.
            "image_token": ("<image_soft_token>", "<unused0>"),
            "boi_token": ("<start_of_image>",),
            "eoi_token": ("<end_of_image>",),
        },
        template=_chat(
            "{{ bos_token }}",
            "<start_of_turn>ROLE\n",
            "<start_of_image>",
            "<end_of_turn>\n",
            "<start_of_turn>model\n",
            {"assistant": "model", "system": "user"},
        ),
    ),
    "idefics3": Projector(
        {"llama": "idefics3"},
        idefics3,
        {"image_token": ("<image>",)},
        ("<fake_token_around_image>", "<global-img>"),
        _chat(
            "<|im_start|>",
            "ROLE: ",
            "<image>",
            "<end_of_utterance>\n",
            "Assistant:",
            {"user": "User", "assistant": "Assistant", "system": "System"},
        ),
    ),
    "qwen2vl_merger": Projector({"qwen2vl": "qwen2_vl"}, qwen2, _QWEN_TOKENS, _QWEN_OTHERS, _QWEN_CHAT),
    "qwen2.5vl_merger": Projector({"qwen2vl": "qwen2_5_vl"}, qwen2_5, _QWEN_TOKENS, _QWEN_OTHERS, _QWEN_CHAT),
    "qwen3vl_merger": Projector(
        {"qwen3vl": "qwen3_vl", "qwen3vlmoe": "qwen3_vl_moe", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe"},
        qwen3,
        _QWEN_TOKENS,
        _QWEN_OTHERS,
        _QWEN_CHAT,
    ),
    "pixtral": Projector(
        {"llama": "llava"},
        pixtral,
        {"image_token": ("[IMG]",)},
        ("[IMG_BREAK]", "[IMG_END]"),
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}"
        "{{ eos_token }}{% else %}[INST]{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}{% if part.type == 'image' %}[IMG]{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endif %}[/INST]{% endif %}{% endfor %}",
    ),
}
TYPES_IN_FILES = frozenset({"smolvlm", MERGED}) | {
    model for projector in PROJECTORS.values() for model in projector.models.values() if model != "llava"
}  # transformers' types of which projectors are read, whatever their tower
