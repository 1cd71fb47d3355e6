"""Models for vLLM that are made in a moment: a configuration and a tokenizer, no weights.

Servers begin with ``--load-format dummy``: weights drawn from a fixed seed, so what they say means
nothing and is the same each time. An adapter needs a file of weights, which is all zeros.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.support import tiny_model

WIDTH, HEAD, LAYERS, RANK = 64, 32, 2, 8
CONTEXT = 2048  #: tokens
WINDOW = 64  #: tokens, of layers that look no further back

_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": HEAD, "max_position_embeddings": CONTEXT,
    "vocab_size": 320, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "dtype": "bfloat16",
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 2, "hidden_act": "silu",
    "rope_theta": 10_000.0,
}  # fmt: skip


def dense(folder: Path) -> Path:
    """Make a model whose layers all look at everything."""
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return _write(folder, own | {"num_hidden_layers": LAYERS})


def hybrid(folder: Path) -> Path:
    """Make a model some of whose layers see a window only: two groups of caches."""
    own = {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "num_hidden_layers": 2 * LAYERS, "sliding_window": WINDOW, "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention"] * LAYERS,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": HEAD,
        "rope_local_base_freq": 10_000.0,
    }  # fmt: skip
    return _write(folder, own)


def adapter(folder: Path) -> Path:
    """Make an adapter of the dense model that changes nothing."""
    folder.mkdir(parents=True)
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{half}.weight": shape
        for layer in range(LAYERS)
        for half, shape in (("A", [RANK, WIDTH]), ("B", [2 * HEAD, RANK]))
    }
    (folder / "adapter_model.safetensors").write_bytes(_zeros(shapes))
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny",
        "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none",
        "target_modules": ["q_proj"], "inference_mode": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    tiny_model.make(folder)
    (folder / "config.json").write_text(json.dumps(_SIZES | config))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
            "eos_token": "<|im_end|>"}  # fmt: skip
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | kind))
    return folder


def _zeros(shapes: dict[str, list[int]]) -> bytes:
    """Return a file of weights: how long the table is, the table, the numbers."""
    table, size = {}, 0
    for name, shape in shapes.items():
        end = size + 4 * shape[0] * shape[1]
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [size, end]}
        size = end
    head = json.dumps(table).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)
