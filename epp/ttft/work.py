"""How much work a prompt is: tokens, each weighing more the more tokens stand before it.

Attention makes a prompt's last tokens dearer than its first: computing ``u`` tokens at the end of
a prompt of ``L`` costs ``u + BEND * u * (L - u / 2)`` times what a token of a short prompt costs.
Work is linear in seconds, so that queues can be added up and one speed can be learned.

**Source:** the step-time model ``a1 * n + a2 * sum(c * (p + c / 2))`` of chunked prefill; the ratio
``a2 / a1`` lies between 1.6e-5 and 1.1e-4 over 20 published pairs of models and GPUs, half of them
between 3e-5 and 4e-5.
"""

from __future__ import annotations

BEND = 3.5e-5  #: of a token's cost, for each token before it


def weight(uncached: float, prompt: float, bend: float = BEND) -> float:
    """Return the work of each of the last ``uncached`` tokens of a prompt; 1.0 for a short one."""
    return 1.0 + bend * max(prompt - uncached / 2.0, 0.0)
