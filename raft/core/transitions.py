"""Prints the transition table of docs/quorum.md: `python -m raft.core.transitions`."""

from __future__ import annotations

from raft.core.roles import NEXT, OBSERVER_NEXT


def transition_table() -> str:
    """Format the table of role transitions as Markdown.

    `o` marks moves that are open to observers and recovering voters too.
    """
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
