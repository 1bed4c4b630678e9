"""How the demo speaks: headings, commands with what they print, and claims."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from examples.demo_cluster import DemoFailedError

OUT = Console(width=98, highlight=False, soft_wrap=True)


def claim(text: str, *, holds: bool) -> None:
    """Print the claim with a tick if `holds` is true, or else end the demo with an error.

    Raises:  DemoFailedError.
    """
    if not holds:
        raise DemoFailedError(text)
    OUT.print(f"  [green]✓[/] {escape(text)}")


def heading(text: str) -> None:
    OUT.print(f"\n[bold]{escape(text)}[/]")


def command(text: str) -> None:
    OUT.print(f"  [bold]$[/] {escape(text)}")


def quiet(text: str) -> None:
    for line in text.rstrip().splitlines():
        OUT.print(f"    {escape(line)}", style="dim")


def failed(text: str) -> None:
    OUT.print(f"  [red]✗ not so:[/] {escape(text)}")
