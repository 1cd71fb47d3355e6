"""A process that serves one pool, from wherever its endpoints come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from epp.collect.kube.leader import Leadership
from epp.extproc.server import ExtProcService
from epp.lanes.lane import Lane, Read, Shared
from epp.lanes.pages import pages_of
from epp.model import Endpoint, EndpointId
from epp.serve.origin import Told, origin_of, pool_label_of
from epp.telemetry.admin import AdminPages, Page
from epp.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class One:
    """The only lane of a process; its counts are the process's."""

    def __init__(self, shared: Shared, metrics: Metrics, read: Read) -> None:
        """See `Lane`."""
        self.lane = Lane(pool_label_of(shared.options), shared, metrics, read)
        self.router = self.lane.router
        self.ports: Mapping[int, str] = {}  #: no port is a pool's own
        self._said = ""  #: parsers that do not fit the pool
        self._shared = shared
        self._read = read

    @property
    def ready(self) -> bool:
        """Whether the endpoints are known, and speak what every parser reads."""
        return self.lane.pool.synced and not self._unfit()

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        """The endpoint of that id, if it is here."""
        return self.lane.pool.get(endpoint_id)

    def _unfit(self) -> bool:
        """Whether a parser that is configured can read nothing of this pool; said once."""
        protocol, unfit = self.lane.pool.protocol, self.lane.unfit
        if unfit and unfit != self._said:
            log.error(
                "not ready: the pool's appProtocol is %s, which %s cannot be", protocol, unfit
            )
        self._said = unfit
        return bool(unfit)

    def reload(self, why: str) -> None:
        """Read the configuration again; what is wrong with it changes nothing."""
        if self.lane.reload(self._read, why):
            log.warning("the data layer is configured at start only: restart the picker for it")

    def attach(self, service: ExtProcService) -> None:
        """Have ``service`` ask here."""
        lane = self.lane
        service.answer_headers = lane.answer_headers
        service.answer_metadata = lane.answer_metadata

    def work(self, leader: Leadership | None) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What is to run all the time, by name.

        Raises:
            ConfigError: it is not told where the endpoints are.
        """
        lane, options = self.lane, self._shared.options
        told = Told(self._shared.seldom, lane.book, leader)
        origin = origin_of(options, lane.plugins.values(), told)
        origin.load(lane.pool)
        return {"endpoints": origin.run(lane.pool), **lane.work()}

    def pages(self, ready: Callable[[], bool], state: Page) -> AdminPages:
        """The admin pages; ``ready`` and ``state`` are the process's."""
        return pages_of(self.lane, ready, state)

    def pages_by_pool(self) -> Mapping[str, AdminPages]:
        """The pages of single pools: none, since `pages` shows the only one."""
        return {}
