"""Keyed names: what may be written of ids that clients made up.

A name is a keyed hash, so nobody without the key can try out what it stands for. The key changes
with each epoch, and with it all names: nothing can be followed from one epoch into the next.

**Source:** BLAKE2b with a key, RFC 7693.
"""

from __future__ import annotations

from hashlib import blake2b

NAME_BYTES = 8
KEY_BYTES = 32


class Names:
    """Makes names in one epoch at a time.

    Args:
        secret: at least `KEY_BYTES` long; recorders that share it give the same names.
        period: seconds of an epoch.
    """

    def __init__(self, secret: bytes, period: float) -> None:
        self._secret = secret
        self._period = period
        self._epoch: int | None = None
        self._key = b""

    def turn(self, now: float) -> bool:
        """Use the key of the moment ``now``, seconds since 1970; True if it is another one."""
        epoch = int(now // self._period)
        if epoch == self._epoch:
            return False
        self._epoch = epoch
        number = epoch.to_bytes(16, "little", signed=True)
        self._key = blake2b(number, key=self._secret[:64], digest_size=KEY_BYTES).digest()
        return True

    def name(self, kind: str, text: str) -> str:
        """Return the name of ``text``, which is ``kind``; "" has none."""
        if not text:
            return ""
        said = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
        return blake2b(said, key=self._key, digest_size=NAME_BYTES).hexdigest()
