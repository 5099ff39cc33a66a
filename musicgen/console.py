"""The terminal: one console for messages, one for results, and progress bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich import progress
from rich.console import Console

from musicgen.text import printable

T = TypeVar("T")

console = Console(stderr=True)
stdout = Console()


def log(text: str, style: str | None = None) -> None:
    """Print a message on standard error, verbatim and unwrapped so that paths can be copied."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on standard error, in yellow."""
    log(text, "yellow")


def warn_of_first(texts: Sequence[str], count: int, rest: str = "more") -> None:
    """Print the first `count` warnings, and the number of the `rest`."""
    for text in texts[:count]:
        warn(text)
    if len(texts) > count:
        warn(f"and {len(texts) - count:,} {rest}")


def progress_bar(*columns: progress.ProgressColumn | str) -> progress.Progress:
    """Return a transient progress bar, silent where standard error is not a terminal.

    `columns` stand between the bar and the elapsed time.
    """
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *columns,
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, `total` unless they know, beside a progress bar that counts them."""
    with progress_bar(progress.MofNCompleteColumn(), progress.TimeRemainingColumn()) as bar:
        yield from bar.track(items, total, description=description)
