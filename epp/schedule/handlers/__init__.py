"""Profile handlers: which profiles run for a request, and what their results add up to."""

from typing import Any

from epp.schedule.handlers.data_parallel import DataParallelProfileHandler
from epp.schedule.handlers.disagg import DisaggProfileHandler
from epp.schedule.handlers.header import HeaderProfileHandler
from epp.schedule.handlers.pd import DisaggHeadersHandler, PdProfileHandler, PrefillHeaderHandler
from epp.schedule.handlers.single import SingleProfileHandler

HANDLERS: tuple[type[Any], ...] = (
    SingleProfileHandler,
    DisaggProfileHandler,
    PdProfileHandler,
    DataParallelProfileHandler,
    HeaderProfileHandler,
    DisaggHeadersHandler,
    PrefillHeaderHandler,
)
"""The last two are accepted and do nothing: they satisfy no protocol."""
