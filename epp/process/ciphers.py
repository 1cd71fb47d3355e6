"""The least TLS version and the cipher suites, by the names that Go has for them.

The suites of TLS 1.3 cannot be chosen, in Go neither. Whoever names only such suites wants 1.3.

**Source:** Go's ``crypto/tls`` constants; OpenSSL's names, ciphers(1).
"""

from __future__ import annotations

import re
import ssl

from epp.errors import ConfigError

VERSIONS = {"VersionTLS10": 12, "VersionTLS11": 12, "VersionTLS12": 12, "VersionTLS13": 13}
"""What each becomes: nothing below 1.2 is spoken."""

_OF_TLS_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_OLD_NAMES = {
    f"TLS_ECDHE_{key}_WITH_CHACHA20_POLY1305": f"TLS_ECDHE_{key}_WITH_CHACHA20_POLY1305_SHA256"
    for key in ("RSA", "ECDSA")
}
#: What both Go and OpenSSL know.
_OFFERED = re.compile(
    r"TLS_ECDHE_(RSA|ECDSA)_WITH_(AES_(128|256)_CBC_SHA|AES_128_CBC_SHA256|AES_128_GCM_SHA256|"
    r"AES_256_GCM_SHA384|CHACHA20_POLY1305_SHA256)|"
    r"TLS_RSA_WITH_AES_(128_CBC_SHA|256_CBC_SHA|128_GCM_SHA256|256_GCM_SHA384)"
)
#: What Go knows and calls insecure: left out.
_BROKEN = re.compile(
    r"TLS_((ECDHE_)?RSA|ECDHE_ECDSA)_WITH_(RC4_128_SHA|3DES_EDE_CBC_SHA)|"
    r"TLS_RSA_WITH_AES_128_CBC_SHA256"
)


def suites_of(names: str) -> tuple[str, ...]:
    """Return OpenSSL's names of the suites of TLS 1.2 among ``names``.

    Raises:
        ConfigError: a name is unknown.
    """
    given = _given(names)
    for name in given:
        if not (name in _OF_TLS_13 or _OFFERED.fullmatch(name) or _BROKEN.fullmatch(name)):
            raise ConfigError(f"--tls-cipher-suites: no cipher suite is called {name!r}")
    return tuple(_openssl(name) for name in given if _OFFERED.fullmatch(name))


def apply(context: ssl.SSLContext, least: str, names: str) -> None:
    """Have ``context`` speak these versions and suites only.

    Args:
        context: a server's.
        least: a key of `VERSIONS`; "" is 1.2.
        names: Go's names of suites, separated by commas; "" leaves OpenSSL's choice.

    Raises:
        ConfigError: the version or a suite is unknown.
    """
    if least and least not in VERSIONS:
        raise ConfigError(f"--tls-min-version={least} is none of {', '.join(VERSIONS)}")
    suites = suites_of(names)
    if VERSIONS.get(least) == 13 or (_given(names) and not suites):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if suites:
        try:
            context.set_ciphers(":".join(suites))
        except ssl.SSLError as error:
            raise ConfigError(f"--tls-cipher-suites: OpenSSL has none of {names}") from error


def _given(names: str) -> list[str]:
    told = (name.strip() for name in names.split(","))
    return [_OLD_NAMES.get(name, name) for name in told if name]


def _openssl(name: str) -> str:
    """``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` is ``ECDHE-RSA-AES128-GCM-SHA256`` there."""
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC_", "_")
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("_SHA256")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")
