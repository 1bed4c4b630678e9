"""The transition table as Markdown, for the document: `python -m raft.core.transitions`."""

from __future__ import annotations

from raft.core.roles import NEXT, OBSERVER_NEXT


def transition_table() -> str:
    """One row per state; `o` marks moves that observers and recovering voters may make too."""
    names = [state.__name__ for state in NEXT]
    lines = [
        "| from \\ to | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for old, allowed in NEXT.items():
        cells = [
            ("yes, o" if new in OBSERVER_NEXT.get(old, ()) else "yes") if new in allowed else ""
            for new in NEXT
        ]
        lines.append(f"| **{old.__name__}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(transition_table())
