"""``pair-profile-handler``: disaggregates a request, or not, by what costs the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from epp import plugin
from epp.disagg.pairs.price import Moving, Place, alone, together
from epp.model import ROLE, Ending, Endpoint, EndpointId, InferenceRequest, Pick
from epp.schedule.filters.roles import DECODE
from epp.schedule.handlers.disagg import disaggregated, has_stages, ran_near, waits_too_long
from epp.schedule.topology import nearness
from epp.ttft.forecast import Forecaster

Weight = Annotated[float, Meta(ge=0)]


class PairProfileHandler:
    """Prices the best few decode endpoints alone and in pairs with the best few for prefill.

    The cheapest wins. Where that is to compute the prompt where it is decoded, and so it is at the
    first of the decode profile, that one has it. A decode endpoint keeps its way, and its partner,
    until another one is cheaper by ``margin``. Pairs are of one set: their ``sameLabels`` do not
    differ. If no prefill endpoint is left, the request is decoded only. Not in llm-d.
    """

    type: ClassVar[str] = "pair-profile-handler"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        decode_profile: str = "decode"
        prefill_profile: str = "prefill"
        top: Annotated[int, Meta(ge=1, le=16)] = 3  #: endpoints of each profile that are priced
        least_tokens: Annotated[int, Meta(ge=0)] = 256
        """Uncached tokens; a request with fewer is decoded only."""
        others_weight: Weight = 0.05
        """Of a second that a request waits which is decoded meanwhile: who reads an answer hardly
        sees it, who waits for one does."""
        margin: Annotated[float, Meta(ge=0, lt=1)] = 0.1  #: by which another way must be cheaper
        max_decode_queue: Annotated[float, Meta(gt=0)] | None = 128.0
        """Waiting requests, as last told, from which nothing is computed elsewhere; null: no limit."""
        same_labels: tuple[str, ...] = ("llm-d.ai/model",)
        """Labels of which two different values make no pair."""

    @staticmethod
    def needed_profiles(params: Params) -> Sequence[str]:
        """See `plugin.ProfileRunner.needed_profiles`: without prefill, decode does it all."""
        return [params.decode_profile]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._params = params
        self._moving = Moving()
        self._partner: dict[EndpointId, EndpointId | None] = {}  # of decode endpoints, lately
        lent = tools.forecaster
        own = Forecaster(tools.ledger, tools.clock)
        self._forecaster = lent if isinstance(lent, Forecaster) else own

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.Saturated: no decode endpoint is left.
        """
        params = self._params
        result = profiles.run(params.decode_profile, request)
        decodes = _best(result, params.top)
        why = self._why_not(request, decodes[0])
        if not why:
            found = ran_near(params.prefill_profile, request, profiles, peer=decodes[0])
            if found is not None:
                return self._cheapest(request, decodes, _best(found, params.top))
            why = "no-endpoint"
        return self._pick(result.chosen, (), why)

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: it was noted when it was decided."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: learn how long the cache took."""
        leg, first, decode = ending.leg, ending.first_byte_at, pick.endpoints[0]
        if leg is None or leg.endpoint is None or leg.seconds is None or first is None:
            return
        if ending.streamed and ending.served in ("", decode.address):
            (level,) = nearness(leg.endpoint, [decode])
            tokens = request.uncached_tokens(decode.id)
            self._moving.learn(level, tokens, max(first - leg.at, 0.0))

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`: a pair with what it was is none any more."""
        self._partner.pop(endpoint_id, None)
        gone = [each for each, partner in self._partner.items() if partner == endpoint_id]
        for each in gone:
            del self._partner[each]

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        return {"moving": self._moving.told(), "partners": len(self._partner)}

    def _why_not(self, request: InferenceRequest, decode: Endpoint) -> str:
        params = self._params
        if not has_stages(request):
            return "format"
        if request.uncached_tokens(decode.id) < params.least_tokens:
            return "short"
        if waits_too_long(decode, params.max_decode_queue):
            return "decode-queue"
        return ""

    def _cheapest(
        self, request: InferenceRequest, decodes: list[Endpoint], prefills: list[Endpoint]
    ) -> Pick:
        known = [self._place(request, each) for each in prefills]
        every = [self._ways(request, each, prefills=prefills, known=known) for each in decodes]
        cheapest = min(range(len(decodes)), key=lambda i: every[i][0][0])
        if every[cheapest][0][1] is None and every[0][0][1] is None:
            cheapest = 0  # without a pair there is nothing that its profile does not know better
        decode, ways = decodes[cheapest], every[cheapest]
        first = ways[0][1]
        self._partner[decode.id] = None if first is None else first.id
        if first is None:
            return self._pick((decode,), (), "cheaper-here" if len(ways) > 1 else "no-endpoint")
        named = [prefill for _, prefill in ways if prefill is not None]
        return self._pick((decode,), named, "cheaper-elsewhere")

    def _ways(
        self,
        request: InferenceRequest,
        decode: Endpoint,
        *,
        prefills: list[Endpoint],
        known: list[Place],
    ) -> list[tuple[float, Endpoint | None]]:
        """Return each way to decode there, and its price: first the one to go, then by price.

        The way that it went lately is compared by a price less the margin. Its true price is the
        one by which endpoints for decode are compared: none is better for what it did lately.
        """
        others, here = self._params.others_weight, self._place(request, decode)
        tokens = request.uncached_tokens(decode.id)
        ways: list[tuple[float, Endpoint | None]] = [(alone(here, others), None)]
        for prefill, place in zip(prefills, known, strict=True):
            if prefill.id != decode.id and self._of_one_set(prefill, decode):
                (level,) = nearness(prefill, [decode])
                moving = self._moving.seconds(level, tokens)
                ways.append((together(place, here, moving, others=others), prefill))
        lately, less = self._partner.get(decode.id), 1.0 - self._params.margin

        def compared(way: tuple[float, Endpoint | None]) -> float:
            price, prefill = way
            return price * (less if (prefill and prefill.id) == lately else 1.0)

        return sorted(ways, key=compared)

    def _place(self, request: InferenceRequest, endpoint: Endpoint) -> Place:
        forecaster, load = self._forecaster, endpoint.load
        decodes = endpoint.labels.get(ROLE) in DECODE
        uncached, prompt = request.uncached_tokens(endpoint.id), request.prompt_tokens
        return Place(
            queued=forecaster.queued_tokens(endpoint) or 0.0,
            work=forecaster.works(uncached, prompt),
            running=load.running or 0.0 if decodes and load is not None else 0.0,
            speed=forecaster.compared(endpoint.id),
        )

    def _of_one_set(self, prefill: Endpoint, decode: Endpoint) -> bool:
        pairs = ((prefill.labels.get(k), decode.labels.get(k)) for k in self._params.same_labels)
        return all(one == other for one, other in pairs)

    def _pick(self, decode: tuple[Endpoint, ...], prefill: Sequence[Endpoint], why: str) -> Pick:
        return disaggregated(decode, prefill, (), profile=self._params.decode_profile, why=why)


def _best(result: plugin.ProfileResult, count: int) -> list[Endpoint]:
    """Return what a profile chose, and the next by score, ``count`` in all."""
    scored = zip(result.scores, result.candidates, strict=True)
    best = [each for _, each in nlargest(count + 1, scored, key=itemgetter(0))]
    first = result.chosen[0]
    return [first, *(each for each in best if each is not first)][:count]
