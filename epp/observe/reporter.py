"""``request-attribute-reporter``: refused for now, with a sentence that says why.

In the Go router it evaluates CEL expressions over an answer's usage and hands the results to the
gateway as dynamic metadata on the last message of the answer. Here an answer's last message
carries no metadata of plugins, so accepting the type would silently break a rate limit that
relies on it.

**Source:** parameters of llm-d's plugin of the same name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from epp import plugin


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a value goes."""

    name: Annotated[str, Meta(min_length=1)]
    namespace: str = "envoy.lb"


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value to report."""

    key: Key
    expression: Annotated[str, Meta(min_length=1)]  #: CEL, over ``usage``
    condition: str = ""  #: CEL; "" always reports


class RequestAttributeReporter:
    """Refused: answers carry no dynamic metadata from plugins yet."""

    type: ClassVar[str] = "request-attribute-reporter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        attributes: Annotated[tuple[Attribute, ...], Meta(min_length=1)]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        names = ", ".join(attribute.key.name for attribute in params.attributes)
        raise ValueError(
            f"request-attribute-reporter ({names}) is not supported yet: answers carry no "
            "dynamic metadata from plugins"
        )
