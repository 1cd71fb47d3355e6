"""Endpoints that never change: those of the command line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.collect.parse.endpoints import parse_addresses
from epp.errors import ConfigError
from epp.model import Endpoint
from epp.pool import Pool


class StaticEndpoints:
    """Puts a fixed list into the pool."""

    def __init__(self, addresses: str) -> None:
        """Take ``host:port,[v6]:port,name:port``.

        Raises:
            ConfigError: the list is malformed; the message names the culprit.
        """
        try:
            self.endpoints = parse_addresses(addresses)
        except ValueError as error:
            raise ConfigError(f"--endpoints: {error}") from error

    def load(self, pool: Pool) -> None:
        """Fill the pool at once."""
        apply(pool, (), self.endpoints)
        pool.synced = True

    async def run(self, pool: Pool) -> None:
        """Fill the pool and return: nothing ever changes."""
        self.load(pool)


def apply(pool: Pool, before: Sequence[Endpoint], after: Sequence[Endpoint]) -> None:
    """Make the pool hold ``after`` instead of ``before``, both of one source.

    An endpoint that stays keeps its load. Another name at the same address is another
    endpoint: what was known of the old one is dropped.
    """
    staying = {endpoint.id for endpoint in after}
    for endpoint in before:
        if endpoint.id not in staying:
            pool.remove(endpoint.id)
    for endpoint in after:
        old = pool.get(endpoint.id)
        if old is not None and (old.namespace, old.name) != (endpoint.namespace, endpoint.name):
            pool.remove(old.id)
            old = None
        if old is not None:
            endpoint = msgspec.structs.replace(  # noqa: PLW2901 - the same one, with its load
                endpoint, load=old.load, reachable=old.reachable
            )
        if endpoint != old:
            pool.put(endpoint)
