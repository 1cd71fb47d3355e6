"""What an HTTP server of ours logs of its own faults: never what a client sent that is no HTTP.

Anybody may send that, and aiohttp's complaint quotes it: a part of a prompt may be in it.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_exceptions import HTTPBadRequest


class _OurFaults(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, HttpProcessingError | HTTPBadRequest):
                return False
            error = error.__cause__ or error.__context__
        return True


http_log = logging.getLogger(__name__)  #: for `aiohttp.web.AppRunner`
http_log.addFilter(_OurFaults())
