"""The message schemas of the pinned release, as they lie in its jars.

Upstream generates its Java classes from JSON files, one per message, and ships the files inside the
jars: metadata records in kafka-metadata, requests, responses and control records in kafka-clients.
They are the authority for names, types, versions, tags and defaults.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from tests.interop.kafka_release import VERSION

Schema = dict[str, Any]

_PLACES = (
    ("kafka-metadata", "common/metadata/"),
    ("kafka-clients", "common/message/"),
    ("kafka-raft", "common/message/"),
)


def schemas(jars: Path) -> dict[str, Schema]:
    """Every schema by its message's name, parsed."""
    found: dict[str, Schema] = {}
    for jar, prefix in _PLACES:
        with zipfile.ZipFile(jars / f"{jar}-{VERSION}.jar") as archive:
            for name in archive.namelist():
                if name.startswith(prefix) and name.endswith(".json"):
                    schema = parse_schema(archive.read(name).decode())
                    assert schema["name"] not in found, f"two schemas of {schema['name']}"
                    found[schema["name"]] = schema
    assert found, f"no schemas in the jars of {jars}"
    return found


def parse_schema(text: str) -> Schema:
    """JSON with `//` comments on lines of their own or after a value.

    >>> parse_schema('{"name": "X", // why\\n "about": "http://here"}')
    {'name': 'X', 'about': 'http://here'}
    """
    parsed: Schema = json.loads(_COMMENT.sub(lambda match: match[1] or "", text))
    return parsed


_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*')  # a string is kept, a comment dropped
