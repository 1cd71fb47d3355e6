"""The page itself: one file, and the policy that keeps a browser from doing more with it.

Pods' names come from elsewhere. The page writes them as text only, and should it ever not, no
script but its own runs: the policy names its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

import msgspec


class Document(msgspec.Struct, frozen=True):
    """What is served at ``/``."""

    body: bytes
    policy: str  #: the value of ``Content-Security-Policy``


def load() -> Document:
    """Read the page from the package. Call it once: the file does not change."""
    body = (resources.files("epp.page") / "live.html").read_bytes()
    return Document(body, policy(body.decode()))


def policy(page: str) -> str:
    """A Content-Security-Policy that allows what stands in ``page``, and asking its own server."""
    return "; ".join((
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        f"style-src {_hashes('style', page)}",
        f"script-src {_hashes('script', page)}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ))  # fmt: skip


def _hashes(tag: str, page: str) -> str:
    """**Source:** Content Security Policy Level 3, `hash-source`."""
    inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (hashlib.sha256(text.encode()).digest() for text in inside)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
