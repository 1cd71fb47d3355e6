"""The least TLS version and the cipher suites, by the names that Go has for them.

gRPC takes both only from the environment, once, when it is first imported: `apply` comes before.
It knows TLS 1.2 and 1.3. The suites of 1.3 cannot be chosen, in Go neither. 1.2 is turned off by
leaving it only a suite that no certificate serves: there is no other switch.

**Source:** Go's ``crypto/tls`` constants; gRPC core, doc/environment_variables.md.
"""

from __future__ import annotations

import os
import re

from epp.errors import ConfigError

VERSIONS = {"VersionTLS10": 12, "VersionTLS11": 12, "VersionTLS12": 12, "VersionTLS13": 13}
"""What each becomes: gRPC speaks nothing below 1.2."""

VARIABLE = "GRPC_SSL_CIPHER_SUITES"
NO_TLS_12 = "ECDHE-PSK-CHACHA20-POLY1305"  #: wants a pre-shared key, which there never is

_OF_TLS_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_OLD_NAMES = {
    f"TLS_ECDHE_{key}_WITH_CHACHA20_POLY1305": f"TLS_ECDHE_{key}_WITH_CHACHA20_POLY1305_SHA256"
    for key in ("RSA", "ECDSA")
}
#: What both Go and BoringSSL know.
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


def suites_of(least: str, names: str) -> str:
    """Return what gRPC is told; "" leaves its own choice.

    Args:
        least: a key of `VERSIONS`; "" is 1.2.
        names: Go's names of suites, separated by commas.

    Raises:
        ConfigError: a name is unknown.
    """
    if least and least not in VERSIONS:
        raise ConfigError(f"--tls-min-version={least} is none of {', '.join(VERSIONS)}")
    given = [
        _OLD_NAMES.get(name.strip(), name.strip()) for name in names.split(",") if name.strip()
    ]
    for name in given:
        if not (name in _OF_TLS_13 or _OFFERED.fullmatch(name) or _BROKEN.fullmatch(name)):
            raise ConfigError(f"--tls-cipher-suites: no cipher suite is called {name!r}")
    offered = [name for name in given if _OFFERED.fullmatch(name)]
    if VERSIONS.get(least) == 13 or (given and not offered):
        return NO_TLS_12
    return ":".join(offered)


def apply(least: str, names: str) -> None:
    """Tell gRPC. It must not have been imported.

    Raises:
        ConfigError: see `suites_of`.
    """
    if suites := suites_of(least, names):
        os.environ[VARIABLE] = suites
