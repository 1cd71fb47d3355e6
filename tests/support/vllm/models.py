"""Models for vLLM that are made in a moment: a configuration and a tokenizer, no weights.

Servers begin with ``--load-format dummy``: weights drawn from a fixed seed, so what they say means
nothing and is the same each time. An adapter needs a file of weights, which is all zeros. Dummy
weights are so small that what is said hardly depends on the prompt; `telling` has larger ones.
"""

from __future__ import annotations

import array
import json
import random
import struct
from collections.abc import Callable, Mapping
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


def telling(folder: Path) -> Path:
    """Make a dense model, exact and with weights, whose answers tell prompts apart.

    So they also tell whether a cache is the prompt's. Its servers need ``--load-format=safetensors``.
    """
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32"}
    _write(folder, own | {"num_hidden_layers": LAYERS})
    (folder / "model.safetensors").write_bytes(_weights(_DENSE, _drawn))
    return folder


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
    (folder / "adapter_model.safetensors").write_bytes(_weights(shapes, _nothing))
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


_LAYER: Mapping[str, list[int]] = {
    "input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH],
    "self_attn.q_norm": [HEAD], "self_attn.k_norm": [HEAD],
    "self_attn.q_proj": [2 * HEAD, WIDTH], "self_attn.k_proj": [HEAD, WIDTH],
    "self_attn.v_proj": [HEAD, WIDTH], "self_attn.o_proj": [WIDTH, 2 * HEAD],
    "mlp.gate_proj": [2 * WIDTH, WIDTH], "mlp.up_proj": [2 * WIDTH, WIDTH],
    "mlp.down_proj": [WIDTH, 2 * WIDTH],
}  # fmt: skip
_DENSE: Mapping[str, list[int]] = {
    "model.embed_tokens.weight": [_SIZES["vocab_size"], WIDTH], "model.norm.weight": [WIDTH],
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(LAYERS)
        for name, shape in _LAYER.items()
    },
}  # fmt: skip


def _drawn(shape: list[int]) -> bytes:
    """Numbers of one variance at each output; of a norm, ones."""
    if len(shape) == 1:
        return array.array("f", [1.0] * shape[0]).tobytes()
    draw = random.Random(str(shape)).gauss
    count = shape[0] * shape[1]
    return array.array("f", (draw(0.0, shape[1] ** -0.5) for _ in range(count))).tobytes()


def _nothing(shape: list[int]) -> bytes:
    return bytes(4 * shape[0] * shape[1])


def _weights(shapes: Mapping[str, list[int]], made: Callable[[list[int]], bytes]) -> bytes:
    """Return a file of weights: how long the table is, the table, the numbers."""
    table, numbers = {}, bytearray()
    for name, shape in shapes.items():
        begin = len(numbers)
        numbers += made(shape)
        offsets = [begin, len(numbers)]
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    head = json.dumps(table).encode()
    return struct.pack("<Q", len(head)) + head + numbers
