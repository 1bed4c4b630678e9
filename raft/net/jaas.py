"""JAAS lines: the user name and password, or the client's id and secret, of `sasl.jaas.config`.

Source: Apache Kafka 4.3, Security, JAAS configuration.
"""

from __future__ import annotations

import re
from typing import Final

from raft.net.oauthbearer import OAUTHBEARER
from raft.net.sasl import PLAIN

_JAAS: Final = re.compile(
    r"\s*(\S+)\s+required((?:\s+[^\s=;]+=(?:\"(?:\\.|[^\"\\])*\"|[^\s;]*))*)\s*;?\s*"
)
_OPTION: Final = re.compile(r"([^\s=]+)=(?:\"((?:\\.|[^\"\\])*)\"|([^\s;]*))")
_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": PLAIN,
    "org.apache.kafka.common.security.scram.ScramLoginModule": "SCRAM",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": OAUTHBEARER,
}


def parse_jaas(text: str, *, modules: tuple[str, ...] = (PLAIN,)) -> dict[str, str]:
    """Return the options in a JAAS line. Raises ValueError, whose text shows no value.

    >>> parse_jaas('org.apache.kafka.common.security.plain.PlainLoginModule required a="b c";')
    {'a': 'b c'}
    """
    found = _JAAS.fullmatch(text)
    if found is None:
        raise ValueError('is not `LOGIN_MODULE required NAME="VALUE" ...;`')
    if _MODULES.get(found[1]) not in modules:
        known = ", ".join(name for name, kind in _MODULES.items() if kind in modules)
        raise ValueError(f"{found[1][:80]!r} is not supported; there is {known}")
    options: dict[str, str] = {}
    for option in _OPTION.finditer(found[2]):
        value = option[3] if option[2] is None else re.sub(r"\\(.)", r"\1", option[2])
        if option[1] in options:
            raise ValueError(f"{option[1][:80]} is given twice")
        options[option[1]] = value
    return options
