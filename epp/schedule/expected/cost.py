"""What a request costs on each endpoint, in seconds; pure functions of arrays.

::

    J = wait + (1 + keep + crowd * backlog) * prefill + memory + rest

``wait`` is the work before it, or the time until a full engine has room. ``prefill`` is its own
work. That is also what it takes from all others: it fills cache that held something else, and it
delays whoever comes behind it, so it counts ``keep`` times more, and ``crowd`` times more for each
request's worth of work that waits on an average endpoint. A fleet with nothing to do chooses the
least time; one that is full computes as little as it can, since nothing else shortens its queues.
``memory`` grows without bound as an engine's KV cache fills.

**Source:** the barrier ``0.15 * k / (1 - k)`` is that of SMG's least_load policy; in LMetric's
product of uncached tokens and batch size, too, work weighs more the more requests there are.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from epp.ttft.forecast import Outlook
from epp.ttft.queues import Numbers

FULL = 0.85  #: of the KV cache in use, above which requests wait for room
BARRIER = 0.15  #: seconds
FULLEST = 0.98  #: of the KV cache that is believed


class Prices(msgspec.Struct, frozen=True):
    """What else than time counts."""

    keep: float  #: for cache that is duplicated or pushed out, of the seconds of a prefill
    crowd: float  #: for those behind, of those seconds, a waiting request
    memory: float  #: for a KV cache in use, in mean prefills


class Waits(msgspec.Struct, frozen=True, gc=False):
    """What holds for any request at this moment, by position; nothing is NaN."""

    seconds: Numbers  #: until its prefill begins, and those that no work accounts for
    per_token: Numbers  #: seconds for one token of work
    queue: Numbers  #: work to be computed before
    used: Numbers  #: fraction of the KV cache in use
    room: Numbers  #: fraction of the KV cache that a token takes; 0.0 if not told
    average: float  #: of `queue`
    backlog: float  #: requests' worth of work that waits on an average endpoint


def waits(outlook: Outlook) -> Waits:
    """Return what one more request would meet. What is not told is as bad as the worst known."""
    seen, every = outlook.seen, outlook.every
    per_token, queue, kv = seen.per_token, seen.queue, seen.kv
    if not seen.whole:
        per_token, kv = _known(per_token, every.per_token), _known(kv, 0.0)
        queue = np.maximum(_known(queue, 0.0), seen.own)
    used = kv + seen.sent * seen.room
    seconds = queue * per_token
    if outlook.stay > 0.0 and np.maximum.reduce(used) > FULL:
        seconds = np.maximum(seconds, _until_room(outlook, used))
    seconds += seen.rest
    seconds += every.rest
    average = float(np.add.reduce(queue)) / len(queue)
    backlog = max(average / outlook.mean - 1.0, 0.0)
    return Waits(seconds, per_token, queue, used, seen.room, average, backlog)


def costs(known: Waits, work: Numbers, *, tokens: float, mean: float, prices: Prices) -> Numbers:
    """Return the seconds that a request costs on each endpoint.

    Args:
        known: what it meets.
        work: of its prefill, by position, >= 0.
        tokens: of its prompt, which will be in the KV cache.
        mean: work of an average request.
        prices: what else counts.
    """
    used = tokens * known.room
    used += known.used
    np.minimum(used, FULLEST, out=used)
    own = work * (1.0 + prices.keep + prices.crowd * known.backlog)
    own += used * (prices.memory * mean)
    own *= known.per_token
    own += known.seconds
    own += used * BARRIER / (1.0 - used)
    return own


def _until_room(outlook: Outlook, used: Numbers) -> Numbers:
    """Seconds until an engine has room for all that wait: one leaves every stay / running."""
    waiting, running = outlook.seen.waiting, outlook.seen.running
    if not outlook.seen.whole:
        waiting, running = _known(waiting, 0.0), _known(running, 1.0)
    each: Numbers = np.where(used > FULL, waiting * outlook.stay / np.maximum(running, 1.0), 0.0)
    return each


def _known(values: Numbers, otherwise: float) -> Numbers:
    """Put the largest known value where none is told; ``otherwise`` if none is known."""
    worst = float(np.fmax.reduce(values))
    # The lesser of both is the value itself, and the worst where there is no value.
    known: Numbers = np.fmin(values, otherwise if math.isnan(worst) else worst)
    return known
