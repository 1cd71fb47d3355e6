"""The image's recipe: stages, user, entrypoint, what it copies. It is not built here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import msgspec

from epp.cli import _parser, serve_options
from epp.serve.options import ServeOptions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Stage(msgspec.Struct):
    """One stage: its base image, and its instructions in order."""

    image: str
    name: str
    steps: list[tuple[str, str]] = []

    def all(self, word: str) -> list[str]:
        return [rest for each, rest in self.steps if each == word]


def stages() -> list[Stage]:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found: list[Stage] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name))
        else:
            found[-1].steps.append((word, " ".join(rest.split())))
    return found


BUILD, FINAL = stages()


def test_both_stages_are_of_one_pinned_python_that_the_project_supports() -> None:
    match = re.search(r"/python:(3\.\d+)-slim-[a-z]+$", FINAL.image)
    assert match is not None, FINAL.image
    assert BUILD.image == FINAL.image
    least = PROJECT["requires-python"].removeprefix(">=")
    assert tuple(map(int, match[1].split("."))) >= tuple(map(int, least.split(".")))


def test_the_image_is_not_root_by_number_so_that_a_cluster_can_see_it() -> None:
    user, _, group = FINAL.all("USER")[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    last = [word for word, _ in FINAL.steps]
    assert last.index("USER") > max(i for i, word in enumerate(last) if word in {"COPY", "ENV"})


def test_flags_alone_start_the_picker() -> None:
    (entrypoint,) = FINAL.all("ENTRYPOINT")
    assert json.loads(entrypoint) == ["epp", "serve"]
    assert PROJECT["scripts"] == {"epp": "epp.cli:main"}
    told = serve_options(_parser().parse_args([*json.loads(entrypoint)[1:], "--pool-name=x"]))
    assert told.pool_name == "x"
    assert FINAL.all("CMD") == []


def test_it_exposes_the_default_ports() -> None:
    default = ServeOptions()
    ports = [int(port) for port in FINAL.all("EXPOSE")[0].split()]
    assert ports == [default.grpc_port, default.grpc_health_port, default.metrics_port]


def test_dependencies_are_wheels_and_the_final_stage_runs_nothing() -> None:
    runs = " ".join(BUILD.all("RUN"))
    for command in re.findall(r"pip (?:download|install|wheel)[^&]*", runs):
        assert any(flag in command for flag in ("--only-binary=:all:", "--no-index", "--no-deps"))
    assert not re.search(r"curl|wget|apt|git ", runs)
    assert FINAL.all("RUN") == []
    assert all(copied.startswith("--from=build ") for copied in FINAL.all("COPY"))


def test_the_extras_that_serving_can_use_are_installed() -> None:
    extras = set(re.findall(r"\[([a-z,]+)\]", " ".join(BUILD.all("RUN"))))
    assert extras == {"tracing,cel,precise"}
    assert {"tracing", "cel"} <= set(PROJECT["optional-dependencies"])


def test_all_that_is_copied_is_there_and_let_through() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = {line[1:] for line in ignored if line.startswith("!")}
    copied = {each for line in BUILD.all("COPY") for each in line.split()[:-1]}
    assert copied == admitted
    assert "*" in ignored
    assert all((ROOT / each).exists() for each in copied)
