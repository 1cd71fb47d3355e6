"""How many bytes of request bodies the picker holds at once, over all streams.

Bodies are held until they are routed and sent on. Without a bound, a few hundred slow uploads of
the largest size would take all memory; over the bound new bodies are refused at their head,
where a gateway that fails open can still let the request pass.
"""

from __future__ import annotations

from epp.errors import Overloaded


class BodyBudget:
    """A count of bytes that never passes its limit.

    Args:
        limit: bytes held at most, > 0.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0  #: bytes held now

    def check(self, size: int) -> None:
        """Look whether ``size`` more bytes (>= 0) would fit, and count nothing.

        An announced length is only believed as far as its bytes come: counted beforehand, a few
        clients that announce much and send nothing would keep everybody else out.

        Raises:
            Overloaded: they would not fit.
        """
        if self.used + size > self.limit:
            raise Overloaded("the picker holds as many request bytes as it may; try again")

    def take(self, size: int) -> None:
        """Count ``size`` more bytes (>= 0).

        Raises:
            Overloaded: they do not fit; nothing was counted.
        """
        self.check(size)
        self.used += size

    def give_back(self, size: int) -> None:
        """Count ``size`` bytes less. Whoever took them gives them back once."""
        self.used -= size
