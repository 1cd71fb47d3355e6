"""A command that prints credentials (``aws eks get-token`` and its kind).

**Source:** kubernetes.io, "client-go credential plugins", ``client.authentication.k8s.io/v1``.
What a plugin prints is never logged: not its output, not its errors.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from epp.kube.errors import KubeError
from epp.kube.identity.credentials import Credential, Pem, check_token

PLUGIN_SECONDS = 25.0  #: below a call's bound, so that the message says what was slow
EARLY_SECONDS = 30.0  #: a credential is renewed that long before it expires
MAX_OUTPUT_BYTES = 1 << 20


class Variable(msgspec.Struct):
    """One variable of the plugin's environment."""

    name: str
    value: str = ""


class Exec(msgspec.Struct, rename="camel"):
    """The kubeconfig's ``exec``."""

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    status: _Status
    api_version: str = ""


class ExecPlugin:
    """Runs the command when there is no credential, it is about to expire, or it was refused."""

    def __init__(
        self,
        settings: Exec,
        folder: Path,
        environment: Mapping[str, str] = os.environ,
        *,
        seconds: float = PLUGIN_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare to run the command.

        Args:
            settings: of the kubeconfig.
            folder: where the kubeconfig lies: a command with a slash is meant from there.
            environment: that the plugin inherits.
            seconds: it has so long; then it is killed.
            now: the wall clock, that expiry is told in.
        """
        self._settings = settings
        self._folder = folder
        self._environment = environment
        self._seconds = seconds
        self._now = now
        self._lock = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires: datetime | None = None

    async def current(self) -> Credential:
        async with self._lock:  # one run for all who wait
            if self._credential is None or self._expiring():
                self._take(await self._run())
            if self._credential is None:
                raise self._error("printed no credential")
            return self._credential

    def refuse(self, credential: Credential) -> None:
        if credential == self._credential:
            self._credential = None

    def _expiring(self) -> bool:
        if self._expires is None:
            return False
        return (self._expires - self._now()).total_seconds() < EARLY_SECONDS

    def _take(self, printed: bytes) -> None:
        try:
            status = msgspec.json.decode(printed, type=_Answer).status
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._error("printed no ExecCredential") from None
        token = (status.token or "").strip()
        certificate, key = status.client_certificate_data or "", status.client_key_data or ""
        if not token and not (certificate and key):
            raise self._error("printed neither a token nor a certificate with its key")
        check_token(token or "-", f"credential plugin {self._settings.command}")
        expires = status.expiration_timestamp
        self._expires = (
            expires if expires is None or expires.tzinfo else expires.replace(tzinfo=UTC)
        )
        self._credential = Credential(token, Pem(text=certificate), Pem(text=key))

    async def _run(self) -> bytes:
        settings = self._settings
        try:
            process = await asyncio.create_subprocess_exec(
                self._command(),
                *(settings.args or ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._variables(),
                start_new_session=True,  # so that its children can be ended with it
            )
        except OSError as error:
            raise self._error(f"cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._seconds):
                printed = await _output(process)
        except TimeoutError:
            raise self._error(f"printed nothing within {self._seconds} s") from None
        finally:
            await _end(process)
        if process.returncode != 0:
            raise self._error(f"ended with {process.returncode}; run it by hand to see why")
        return printed

    def _command(self) -> str:
        command = self._settings.command
        return str(self._folder / command) if "/" in command else command

    def _variables(self) -> dict[str, str]:
        info = {
            "apiVersion": self._settings.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        own = {each.name: each.value for each in self._settings.env or ()}
        asked = {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        return {**self._environment, **own, **asked}

    def _error(self, what: str) -> KubeError:
        hint = (self._settings.install_hint or "").strip()
        text = f"credential plugin {self._settings.command} {what}"
        return KubeError(f"{text}. {hint}" if hint else text, reason="credentials")


async def _output(process: asyncio.subprocess.Process) -> bytes:
    """What the plugin prints until it ends; more than anyone's credential is cut off."""
    if process.stdout is None:
        return b""
    pieces = []
    left = MAX_OUTPUT_BYTES
    while left > 0 and (piece := await process.stdout.read(left)):
        pieces.append(piece)
        left -= len(piece)
    await process.wait()
    return b"".join(pieces)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
