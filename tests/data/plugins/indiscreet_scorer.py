"""Fails, and puts the whole prompt into its exception."""

from epp import plugin


class IndiscreetScorer:
    type = "indiscreet-scorer"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params, tools):
        pass

    def score(self, request, endpoints):
        raise ValueError(f"cannot score {request.prompt!r} of {request.headers!r}")
