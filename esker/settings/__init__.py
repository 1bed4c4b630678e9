"""All settings, one module a section.

    Setting("broker.rack", str, "", "The rack (or availability zone) that this broker is in.")

A new key is one entry in its section's module; `pytest tests/esker/test_configuration_docs.py
--rewrite` then writes it into `docs/configuration.md`, and the value, parsed, is found by its key
in the `values` of whatever `esker.settings.config` has read (`config.values["broker.rack"]`).

The surprise: a node accepts the keys of every role, whichever it has, as Kafka does. So a file can
be shared, and what is misspelt is refused all the same.
"""

from __future__ import annotations

from typing import Final

from esker.settings import (
    access,
    append,
    broker,
    compaction,
    diskless,
    groups,
    node,
    processes,
    quorum,
    security,
    store,
    topic_defaults,
    transactions,
)
from esker.settings.base import Section, Setting

SECTIONS: Final = (
    Section("Any node", node.SETTINGS),
    Section("TLS and SASL", security.SETTINGS),
    Section("Access control", access.SETTINGS),
    Section("The quorum", quorum.SETTINGS),
    Section("Brokers and topics", broker.SETTINGS),
    Section("Several broker processes", processes.SETTINGS),
    Section("Diskless topics", diskless.SETTINGS),
    Section("Defaults of topic settings", topic_defaults.SETTINGS),
    Section("Writing and reading batches", append.SETTINGS),
    Section("Merging and compaction", compaction.SETTINGS),
    Section("The object store", store.SETTINGS),
    Section("Consumer groups", groups.SETTINGS),
    Section("Transactions", transactions.SETTINGS),
)

SETTINGS: Final = {setting.key: setting for section in SECTIONS for setting in section.settings}
"""Every setting a node knows, by key."""

assert len(SETTINGS) == sum(len(section.settings) for section in SECTIONS), "a key stands twice"

__all__ = ["SECTIONS", "SETTINGS", "Section", "Setting"]
