"""Where cases run that only need a gateway and an API server: here, or in a cluster with nodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from tests.support.cluster.deployed import PORT, deployed
from tests.support.cluster.install import Installed
from tests.support.cluster.site import site


class Gateway(Protocol):
    """A release behind a gateway."""

    port: int  #: on this machine
    release: Installed

    @property
    def names(self) -> list[str]:
        """The engines' pods."""

    async def scale(self, count: int) -> list[str]:
        """Have so many engines; return their names once requests may go there."""

    async def roll(self, *, surge: int) -> None:
        """Replace all engines."""


@contextlib.asynccontextmanager
async def any_site(folder: Path, *, count: int) -> AsyncIterator[Gateway]:
    """The cluster's gateway that ``TEST_GATEWAY_PORT`` names, else one of our own."""
    if PORT in os.environ:
        async with deployed(count) as made:
            yield made
    else:
        async with site(folder, count=count) as own:
            yield own
