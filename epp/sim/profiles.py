"""How long one step of a model server takes, per model and GPU: a table and one formula.

A step with ``n`` prefill tokens in chunks (``c`` new tokens after ``p`` computed ones each) and
``b`` decoding sequences of ``S`` tokens of context in all takes::

    d0 + d1*b + d2*S + a1*n + a2*sum(c*(p + c/2)) + overhead

``d0`` is the time to read the weights once, so it is paid by every step.

**Source:** constants fitted to the grids of NVIDIA aiconfigurator 0.12.0 (backend vLLM): prefill
within 3 %, decode within 4 %. Those grids are a little faster than what operators publish, so
`timing` multiplies by `WILD` and adds an overhead per step: 1 ms on one GPU, 4 ms on several.
KV capacities are estimates for a memory utilization of 0.9. Mixture-of-experts models are left
out: their decode time is not a line in the batch size.

Two rows are no fits. The RTX 4090's decoding is that of the RTX PRO 6000 by their data sheets: memory
of 1,008 instead of 1,597 GB/s. Its prefill is what 165 dense TFLOPS allow in full, 14.0 GFLOP a token:
its tensor cores accumulate FP32 at half their rate, so little else holds them up, where those of the
RTX PRO 6000 reach 73 % of 504. A server's counters of each second agree (82 to 86 us a token), and were
known when this was chosen. Its KV capacity is what vLLM reported. For two RTX PRO 6000, aiconfigurator
assumes that GPUs read each other's memory over PCIe; without that every byte of an all-reduce goes
through the host, twice the way, and there are two of them a layer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from epp.errors import ConfigError

WILD = 1.2  #: published servers against the fitted grids

DEFAULT = "llama-3.1-8b-h100"


class Timing(msgspec.Struct, frozen=True):
    """The formula's constants, all in seconds."""

    base: float  #: d0 + overhead, per step
    per_decode: float  #: d1, per decoding sequence
    per_context: float  #: d2, per token of context of a decoding sequence
    per_prefill: float  #: a1, per prefill token
    per_attention: float  #: a2, per prefill token and token of context before it

    def step_seconds(
        self, *, decodes: int, context: int, prefill: int = 0, attention: float = 0.0
    ) -> float:
        """Seconds of one step; ``attention`` is ``sum(c*(p + c/2))`` over prefill chunks."""
        return (
            self.base
            + self.per_decode * decodes
            + self.per_context * context
            + self.per_prefill * prefill
            + self.per_attention * attention
        )


class Profile(msgspec.Struct, frozen=True):
    """One row: a model on a GPU."""

    gpus: int  #: tensor-parallel size
    a1_us: float  #: microseconds per prefill token
    a2_ns: float  #: nanoseconds per prefill token and token of context
    d0_ms: float  #: milliseconds per step
    d1_ms: float  #: milliseconds per decoding sequence
    d2_ns: float  #: nanoseconds per decoding sequence and token of context
    kv_tokens: int  #: tokens that the KV cache holds

    def timing(self, factor: float = WILD) -> Timing:
        """Return the constants in seconds; ``factor`` 1.0 is the fitted upper bound."""
        overhead_ms = 0.0 if factor == 1.0 else 1.0 if self.gpus == 1 else 4.0
        return Timing(
            base=(self.d0_ms * factor + overhead_ms) * 1e-3,
            per_decode=self.d1_ms * factor * 1e-3,
            per_context=self.d2_ns * factor * 1e-9,
            per_prefill=self.a1_us * factor * 1e-6,
            per_attention=self.a2_ns * factor * 1e-9,
        )


PROFILES: Mapping[str, Profile] = {
    "llama-3.1-8b-a100": Profile(1, 55.1, 2.97, 11.5, 0.027, 86.1, 447_000),
    "llama-3.1-8b-h100": Profile(1, 20.2, 0.79, 6.4, 0.011, 42.0, 450_000),
    "llama-3.1-8b-h200": Profile(1, 20.5, 0.80, 5.0, 0.012, 29.6, 894_000),
    "llama-3.1-8b-b200": Profile(1, 10.0, 0.41, 3.4, 0.004, 18.1, 1_183_000),
    "llama-3.1-8b-l40s": Profile(1, 69.6, 2.92, 22.2, 0.033, 195.0, 191_000),
    "llama-3.1-8b-rtx-pro-6000": Profile(1, 38.0, 1.72, 10.8, 0.013, 86.4, 564_000),
    "llama-3.1-8b-rtx-4090": Profile(1, 84.5, 3.8, 17.1, 0.021, 137.0, 41_400),
    "llama-3.1-70b-a100-tp4": Profile(4, 148.0, 3.71, 27.8, 0.102, 55.1, 481_000),
    "llama-3.1-70b-h100-tp4": Profile(4, 61.9, 0.98, 15.2, 0.032, 26.5, 486_000),
    "llama-3.1-70b-h200-tp2": Profile(2, 107.0, 2.11, 21.0, 0.034, 36.9, 383_000),
    "llama-3.1-70b-h200-tp4": Profile(4, 62.4, 1.01, 12.3, 0.031, 18.6, 1_196_000),
    "llama-3.1-70b-fp8-h100-tp2": Profile(2, 70.2, 2.14, 16.4, 0.038, 28.9, 236_000),
    "qwen3-32b-a100-tp2": Profile(2, 126.0, 5.88, 24.9, 0.082, 85.1, 320_000),
    "qwen3-32b-h100-tp2": Profile(2, 50.4, 1.60, 13.6, 0.027, 42.3, 323_000),
    "qwen3-32b-h200": Profile(1, 88.8, 3.26, 19.2, 0.032, 60.3, 258_000),
    "qwen3-32b-h200-tp2": Profile(2, 49.5, 1.65, 10.8, 0.024, 29.8, 767_000),
    "qwen3-32b-b200": Profile(1, 44.2, 1.61, 12.6, 0.011, 36.6, 403_000),
    "qwen3-32b-rtx-pro-6000-tp2": Profile(2, 168.0, 3.36, 27.8, 0.101, 89.4, 436_000),
    "qwen3-32b-fp8-h100": Profile(1, 54.5, 3.36, 22.8, 0.066, 47.7, 156_000),
}


def by_name(name: str) -> Profile:
    """Return the profile of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    profile = PROFILES.get(name)
    if profile is None:
        known = ", ".join(sorted(PROFILES))
        raise ConfigError(f"engine profile {name!r} is not known; known are: {known}")
    return profile
