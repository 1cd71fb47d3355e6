"""Everything that no other parser reads: routed by load, body untouched."""

from __future__ import annotations

from typing import ClassVar

from epp import plugin
from epp.formats.reading import PathParser, Reads


class PassthroughParser(PathParser):
    """Reads nothing, so it fits every request."""

    type: ClassVar[str] = "passthrough-parser"
    stability: ClassVar[plugin.Stability] = "beta"
    protocols: ClassVar[tuple[str, ...]] = ()

    reads: ClassVar[Reads] = {}
