"""``request-attribute-reporter``: numbers about an answer's usage, told to the gateway.

Expressions are in CEL, the Common Expression Language, and read ``usage``. Their values go out
as dynamic metadata on the answer's last message, where a rate limit can read them.

As in the Go router, ``usage``'s numbers are doubles; an expression that mixes them with integers
(``usage.prompt_tokens * 2``), which CEL does not allow, is given integers instead. One that still
fails, or whose value is no finite number, reports nothing.

What an evaluation may cost is bounded when the picker starts: expressions are short, and macros
that loop (``map``, ``all``, ...) are refused, since there is nothing to loop over.

**Source:** parameters of llm-d's plugin of the same name; CEL specification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import InferenceRequest, Pick, Usage

MAX_EXPRESSION = 1024  #: characters
LOOPS = ("all", "exists", "exists_one", "existsOne", "filter", "map", "transformList",
         "transformMap", "transformMapEntry", "reduce")  # fmt: skip
_LOOP = re.compile(rf"\.\s*({'|'.join(LOOPS)})\s*\(")
_KNOWN = {"usage"}

Expression = Annotated[str, Meta(max_length=MAX_EXPRESSION)]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a value goes."""

    name: Annotated[str, Meta(min_length=1)]
    namespace: Annotated[str, Meta(min_length=1)] = "envoy.lb"


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value to report."""

    key: Key
    expression: Annotated[
        str, Meta(min_length=1, max_length=MAX_EXPRESSION)
    ]  #: CEL, over ``usage``
    condition: Expression = ""  #: CEL; only where it is true the value is reported; "" always


class RequestAttributeReporter:
    """Values of CEL expressions over an answer's usage, as dynamic metadata for the gateway.

    ``usage`` has ``prompt_tokens``, ``completion_tokens`` and ``total_tokens`` and
    ``prompt_tokens_details.cached_tokens``, as far as the engine reported them. Values are cut to
    whole numbers. Needs ``epp[cel]``, and a gateway that shows the picker the answer: in the lean
    mode nothing is reported.
    Differs from llm-d: several attributes are allowed, numbers that were not reported are absent
    instead of 0, and expressions may not loop.
    """

    type: ClassVar[str] = "request-attribute-reporter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        attributes: Annotated[tuple[Attribute, ...], Meta(min_length=1, max_length=16)]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        compile_ = _compiler()
        self._attributes = tuple(_Reported(each, compile_) for each in params.attributes)

    def report(
        self, request: InferenceRequest, pick: Pick, usage: Usage
    ) -> Mapping[str, Mapping[str, float]]:
        """See `plugin.AnswerReporter.report`."""
        doubles, integers = variables(usage, float), variables(usage, int)
        found: dict[str, dict[str, float]] = {}
        for each in self._attributes:
            value = each.value(doubles, integers)
            if value is not None:
                found.setdefault(each.key.namespace, {})[each.key.name] = value
        return found


class _Reported:
    """One attribute, compiled."""

    def __init__(self, attribute: Attribute, compile_: Callable[[str], Any]) -> None:
        self.key = attribute.key
        self._expression = compile_(attribute.expression)
        self._condition = compile_(attribute.condition) if attribute.condition else None

    def value(self, *variables: Mapping[str, Any]) -> float | None:
        """Return the value by the first of ``variables`` that fits; None reports nothing."""
        for given in variables:
            if self._condition is not None and _evaluated(self._condition, given) is not True:
                continue
            value = _evaluated(self._expression, given)
            if type(value) in (int, float) and math.isfinite(value):
                return float(int(value))
        return None


def variables(usage: Usage, number: type[int | float]) -> Mapping[str, Any]:
    """What expressions may read: the numbers that the engine reported."""
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    found: dict[str, Any] = {}
    if prompt is not None:
        found["prompt_tokens"] = number(prompt)
    if completion is not None:
        found["completion_tokens"] = number(completion)
    if found:
        found["total_tokens"] = number((prompt or 0) + (completion or 0))
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": number(cached)}
    return {"usage": found}


def _compiler() -> Callable[[str], Any]:
    """Return what compiles an expression; it raises `ValueError`."""
    try:
        import cel  # noqa: PLC0415 - 0.3 s and 6 MB, for those who use it
    except ModuleNotFoundError as error:
        raise ValueError(
            f"request-attribute-reporter needs the module {error.name!r}: pip install '.[cel]' in "
            "the folder of epp's sources"
        ) from error

    def compile_(expression: str) -> Any:
        if loop := _LOOP.search(expression):
            raise ValueError(f"{expression!r}: loops such as {loop[1]!r} are not supported")
        program = _checked(cel.compile, expression)
        if unknown := sorted(set(program.variables()) - _KNOWN):
            raise ValueError(f"{expression!r}: there is no {unknown[0]!r}, only 'usage'")
        return program

    return compile_


def _checked(compile_: Callable[[str], Any], expression: str) -> Any:
    try:
        return compile_(expression)
    except Exception as error:
        said = str(error).splitlines()[0]
        raise ValueError(said) from error


def _evaluated(program: Any, variables: Mapping[str, Any]) -> Any:
    """Return the value; None if there is none."""
    try:
        return program.execute(variables)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - a panic in the library is no `Exception`
        return None
