"""Declares the rules of an audit, and counts what breaks them.

    @rule("offsets-contiguous", "5", "A partition's batch begins where the last one ended.")
    def offsets_contiguous(commits: Commits) -> Faults: ...

A rule is a pure function of facts that were read elsewhere; it yields what contradicts it and
decides nothing else. So the same function runs in this process, in a task of Spark's, and in a test
that breaks one thing and demands that one rule says so.

The trap: a broken log can break a rule ten million times. Each is counted, and a few are kept,
the first one first.

Source: docs/design/pipeline.md#exit-codes, docs/design/invariants.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from records.schema import MetadataRecord

KEPT: Final = 100
"""Violations of one rule that are kept for the file; all are counted."""

F = TypeVar("F", bound=Callable[..., "Faults"])
S = TypeVar("S")


class Fault(NamedTuple):
    """A contradiction that a rule found; the caller knows which log it is in."""

    offset: int | None  # in the log; None: of no record
    what: str  # with the values
    record: str = ""  # the record's type
    object_id: int | None = None


Faults = Iterator[Fault]


class Rule(NamedTuple):
    """A statement that must be true, and the function that checks it against facts."""

    name: str
    invariant: str  # numbers of docs/design/invariants.md
    sentence: str
    check: Callable[..., Faults]
    loss: bool  # broken, it means that data is gone


RULES: Final[dict[str, Rule]] = {}
"""Every rule by its name, in the order of the modules that declare them."""


def rule(name: str, invariant: str, sentence: str, *, loss: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers a function as the check of a new rule."""

    def declare(check: F) -> F:
        assert name not in RULES, f"two rules are called {name}"
        RULES[name] = Rule(name, invariant, sentence, check, loss)
        check.__doc__ = sentence
        return check

    return declare


def rules_of(module: str) -> list[Rule]:
    """Return the rules that a module declares, in the order of their declaration."""
    return [declared for declared in RULES.values() if declared.check.__module__ == module]


class Violation(NamedTuple):
    """A contradiction, with the log and offset it is at."""

    rule: str
    log: str
    offset: int | None
    record: str
    object_id: int | None
    what: str

    def order(self) -> tuple[Any, ...]:
        """Return the sort key of a violation: log, log offset, object id, text."""
        offset = -1 if self.offset is None else self.offset
        return self.log, offset, -1 if self.object_id is None else self.object_id, self.what


@dataclass(slots=True)
class Findings:
    """Violations, counted rule by rule; `merge` adds up those of many tasks."""

    counts: dict[str, int] = field(default_factory=dict)
    kept: dict[str, list[Violation]] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)  # by id, also of deleted topics

    def add(self, name: str, log: str, faults: Iterable[Fault]) -> None:
        """Count all violations of a rule, and store the first few of them with their text."""
        assert name in RULES, f"no rule is called {name}"
        for fault in faults:
            self.counts[name] = self.counts.get(name, 0) + 1
            kept = self.kept.setdefault(name, [])
            if len(kept) < KEPT:
                kept.append(
                    Violation(name, log, fault.offset, fault.record, fault.object_id, fault.what)
                )

    def check(self, log: str, rules: Iterable[Rule], *facts: Any) -> None:
        """Check a coordinator's state by these rules, and add violations to the findings."""
        for declared in rules:
            self.add(declared.name, log, declared.check(*facts))

    def merge(self, other: Findings) -> None:
        """Add the violations that another task found."""
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
            both = sorted([*self.kept.get(name, ()), *other.kept[name]], key=Violation.order)
            self.kept[name] = both[:KEPT]
        self.topic_names |= other.topic_names

    def name_topics(self) -> None:
        """Write topics by their names in the texts of all kept violations, and say their ids."""
        for name, violations in self.kept.items():
            self.kept[name] = [
                one._replace(what=with_names(one.what, self.topic_names)) for one in violations
            ]

    def first(self, name: str) -> Violation:
        """Return the first recorded violation of the rule with this name."""
        return min(self.kept[name], key=Violation.order)

    @property
    def loses_data(self) -> bool:
        """Return whether any broken rule means that data is lost."""
        return any(RULES[name].loss for name in self.counts)


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Replace topic ids by names, and append which id each name stands for.

    >>> with_names("JSXTS02ES1WC2VfWqBp5jA-0: log start 7", {"JSXTS02ES1WC2VfWqBp5jA": "orders"})
    'orders-0: log start 7 (orders: topic id JSXTS02ES1WC2VfWqBp5jA)'
    """
    found = [topic_id for topic_id in names if topic_id in text]
    for topic_id in found:
        text = text.replace(topic_id, names[topic_id])
    ids = ", ".join(f"{names[topic_id]}: topic id {topic_id}" for topic_id in found)
    return f"{text} ({ids})" if ids else text


def by_name(counts: Mapping[str, int]) -> list[tuple[Rule, int]]:
    """Return each broken rule with its count of violations, in the order of declaration."""
    return [(declared, counts[name]) for name, declared in RULES.items() if counts.get(name)]


class RecordRules(Generic[S]):
    """Rules about one record each, checked against the state of the log before it."""

    def __init__(self) -> None:
        self._names: defaultdict[type[MetadataRecord], list[str]] = defaultdict(list)

    def on(
        self, name: str, invariant: str, sentence: str, *types: type[MetadataRecord]
    ) -> Callable[[Callable[[S, Any], Faults]], Callable[[S, Any], Faults]]:
        """Return a decorator that declares a rule about records of these types."""

        def declare(check: Callable[[S, Any], Faults]) -> Callable[[S, Any], Faults]:
            for one in types:
                self._names[one].append(name)
            return rule(name, invariant, sentence)(check)

        return declare

    def check(
        self, log: str, offset: int, state: S, record: MetadataRecord, findings: Findings
    ) -> None:
        """Check a record against the rules of its type and the state before the record."""
        record_name = record.schema().name
        for name in self._names[type(record)]:
            faults = RULES[name].check(state, record)
            here = (fault._replace(offset=offset, record=record_name) for fault in faults)
            findings.add(name, log, here)
