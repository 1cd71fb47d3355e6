"""Models as YAML: reading and writing them, and those that come with `epp`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec
import yaml

from epp.traffic.model.model import Model
from epp.traffic.trace import TraceError

_PRESETS = resources.files("epp.traffic.model") / "presets"


def presets() -> list[str]:
    """Names of the models that come with `epp`."""
    return sorted(each.name.removesuffix(".yaml") for each in _PRESETS.iterdir())


def preset(name: str) -> Model:
    """Return the model ``name``.

    Raises:
        TraceError: there is none.
    """
    if name not in presets():
        raise TraceError(f"no preset is called {name!r}: there is {', '.join(presets())}")
    return parsed((_PRESETS / f"{name}.yaml").read_text(), f"preset {name}")


def read_model(path: str) -> Model:
    """Return the model in a file.

    Raises:
        TraceError: it is none.
    """
    return parsed(Path(path).read_text(), path)


def parsed(text: str, where: str) -> Model:
    """Return the model that ``text`` says.

    Raises:
        TraceError: it says none; ``where`` is named.
    """
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, the one in C
        return msgspec.convert(data, Model)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise TraceError(f"{where}: {error}") from error


def write_model(model: Model, path: str) -> None:
    """Write ``model`` to a file."""
    text = yaml.dump(msgspec.to_builtins(model), Dumper=_DUMPER, sort_keys=False, width=100)
    Path(path).write_text(text)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
