"""Who we are to the API server: fixed, or from a file that is renewed under us.

A credential never appears in a log or an error: its types say nothing of themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from epp.kube.errors import KubeError


class Pem(msgspec.Struct, frozen=True):
    """Certificates or a key: a file, or the text itself; neither: there is none."""

    path: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.path or self.text)

    def __repr__(self) -> str:
        return f"Pem(path={self.path!r})"


class Credential(msgspec.Struct, frozen=True):
    """What a request shows: a bearer token, a certificate with its key, both, or neither."""

    token: str = ""
    certificate: Pem = Pem()
    key: Pem = Pem()

    def __repr__(self) -> str:
        return "Credential(...)"


class Credentials(Protocol):
    """Where the credential of the next request comes from."""

    async def current(self) -> Credential:
        """The credential to use.

        Raises:
            KubeError: there is none; status 0, reason ``credentials``.
        """
        ...

    def refuse(self, credential: Credential) -> None:
        """The server answered 401 to ``credential``: do not offer it again if there is a way."""
        ...


class Fixed:
    """The same credential for ever."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def current(self) -> Credential:
        return self._credential

    def refuse(self, credential: Credential) -> None:
        """Nothing else can be offered."""


class TokenFile:
    """A token that somebody renews in a file, as the kubelet does.

    The file is small and lies in memory: it is read for every request, which sees every rotation.
    If it is gone or empty for a moment, the last token serves on.
    """

    def __init__(self, path: str, rest: Credential = Credential()) -> None:  # noqa: B008 - frozen
        self._path = Path(path)
        self._rest = rest
        self._last = ""

    async def current(self) -> Credential:
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._last:
                raise _no_credentials(f"token file {self._path}: {_said(error)}") from None
            token = ""
        if token:
            check_token(token, f"token file {self._path}")
        elif not self._last:
            raise _no_credentials(f"token file {self._path} is empty")
        self._last = token or self._last
        return msgspec.structs.replace(self._rest, token=self._last)

    def refuse(self, credential: Credential) -> None:
        """The next request reads the file again anyway."""


def check_token(token: str, where: str) -> None:
    """Raise `KubeError` if ``token`` cannot be a header's value."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise _no_credentials(f"{where}: holds characters that no token has")


def _no_credentials(message: str) -> KubeError:
    return KubeError(message, reason="credentials")


def _said(error: Exception) -> str:
    return (error.strerror or "unreadable") if isinstance(error, OSError) else "not text"
