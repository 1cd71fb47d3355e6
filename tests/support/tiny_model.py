"""A tiny model's folder: a byte-level tokenizer with merges, and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
LEARNED = ["what is the weather like today", "be kind and answer the question", "assistant user"]


def make(folder: Path, *, template: str | None = TEMPLATE) -> tokenizers.Tokenizer:
    """Write the folder's files; return the tokenizer."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(LEARNED * 5, trainer)
    made.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"bos_token": {"content": "<s>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return made
