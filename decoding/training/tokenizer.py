"""Owns the making of the tokenizer: byte-level BPE with single digits, and its chat template.

Does not know the models. Invariant: decoding an encoding gives back the same text; nothing is added or cleaned.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from decoding.training.texts.corpus import (
    ASSISTANT,
    END_OF_TEXT,
    END_OF_TURN,
    SKILLS,
    SPECIAL_TOKENS,
    USER,
    generate_documents,
)

VOCABULARY_SIZE = 2048
CONTEXT_LENGTH = 2048
SAMPLE_DOCUMENTS = {"code": 6000, "reasoning": 4000, "stories": 12000}
_PIECES = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}" + ASSISTANT + "{% else %}" + USER + "{% endif %}"
    "{{ message['content'] }}" + END_OF_TURN + "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def train_tokenizer(seed: int, sample_share: float = 1.0) -> Tokenizer:
    """The tokenizer learned from a sample of every skill's training side; tests take a share of the sample."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_sample(seed, sample_share), trainer)
    return tokenizer


def _sample(seed: int, share: float) -> Iterator[str]:
    for skill in SKILLS:
        num_documents = int(share * SAMPLE_DOCUMENTS[skill])
        for document in islice(generate_documents(skill, seed, held_out=False), num_documents):
            yield from (segment.text for segment in document.segments)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the tokenizer as a Hugging Face folder that adds no tokens of its own."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        bos_token=None,
        unk_token=None,
        additional_special_tokens=[USER, ASSISTANT, END_OF_TURN],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(str(folder))
