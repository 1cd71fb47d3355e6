"""Which names of models are adapters', as engines list them; pure.

An adapter's blocks are not its base model's, though their tokens are the same. Events name an adapter
only once it was used, so that its first request could not be told from one of the base model.

**Source:** ``/v1/models`` of vLLM and SGLang: an adapter has a ``parent``, and served names have none.
"""

from __future__ import annotations

import msgspec

from epp.model import EndpointId


class Listed(msgspec.Struct, frozen=True):
    """The names that an engine serves."""

    models: frozenset[str] = frozenset()
    adapters: frozenset[str] = frozenset()


class ModelNames:
    """Of all endpoints together."""

    def __init__(self) -> None:
        self.adapters: frozenset[str] = frozenset()  #: that some endpoint lists
        self.models: frozenset[str] = frozenset()  #: likewise, that are no adapters
        self._asked: set[EndpointId] = set()
        self._told: dict[EndpointId, Listed | None] = {}

    def asked(self, endpoint_id: EndpointId) -> None:
        """Note that an endpoint will tell, or be found not to."""
        self._asked.add(endpoint_id)

    def told(self, endpoint_id: EndpointId, listed: Listed | None) -> None:
        """Note what an endpoint serves; None: it does not tell, and what it told before holds."""
        self._asked.discard(endpoint_id)
        before = self._told.get(endpoint_id)
        self._told[endpoint_id] = before if listed is None else listed
        if self._told[endpoint_id] != before:
            self._unite()

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forget an endpoint."""
        self._asked.discard(endpoint_id)
        if self._told.pop(endpoint_id, None) is not None:
            self._unite()

    def root_of(self, name: str) -> str | None:
        """Return the adapter that a name means, "" for a base model, None if that is not known.

        Where no engine lists its models, a name is taken for a base model's.
        """
        if name in self.adapters:
            return name
        if not name or name in self.models:
            return ""
        if self.models or self.adapters:
            return None
        return None if self._asked and not self._told else ""

    def _unite(self) -> None:
        every = [each for each in self._told.values() if each is not None]
        self.adapters = frozenset().union(*(each.adapters for each in every))
        self.models = frozenset().union(*(each.models for each in every))
