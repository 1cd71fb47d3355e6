"""Whom the sidecar may ask: a head from outside must not make it call any host.

Two lists: endpoints of a flag, which are told with their ports, and the pods of an InferencePool,
whose prefill and decode pods may listen on other ports than the pool says.
"""

from __future__ import annotations

from epp.model import Endpoint
from epp.pool import Pool
from epp.sidecar.head import Address


class Allowed:
    """The endpoints of a pool that a collector fills. Without a pool everybody may be asked."""

    def __init__(self, pool: Pool | None, *, any_port: bool = False) -> None:
        """``any_port`` allows every port of the pool's hosts."""
        self._pool = pool
        self._any_port = any_port
        self._endpoints: tuple[Endpoint, ...] = ()
        self._hosts: frozenset[str] = frozenset()
        self._addresses: frozenset[Address] = frozenset()

    def permits(self, address: Address) -> bool:
        """Say if this server may be asked."""
        if self._pool is None:
            return True
        members = self._pool.snapshot()
        if members is not self._endpoints:
            self._endpoints = members
            self._hosts = frozenset(each.host for each in members)
            self._addresses = frozenset(Address(each.host, each.port) for each in members)
        return address.host in self._hosts if self._any_port else address in self._addresses
