"""Writes down how each request ended: outcome, status, endpoint picked and that served, model."""

from pathlib import Path

from epp import plugin


class EndingDiary:
    type = "ending-diary"

    class Params(plugin.Params, frozen=True):
        file: str

    def __init__(self, params, tools):
        self._path = Path(params.file)

    def picked(self, request, pick):
        pass

    def ended(self, request, pick, ending):
        picked = pick.endpoints[0].address
        words = (ending.outcome.value, ending.status, picked, ending.served, request.model)
        with self._path.open("a") as file:
            file.write(" ".join(str(word or "-") for word in words) + "\n")
