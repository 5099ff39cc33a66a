"""The terminal: one console for messages, one for results, and progress bars."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich import progress
from rich.console import Console
from rich.text import Text

from musicgen.text import printable

T = TypeVar("T")

SECONDS_PER_LINE = 60  # of progress in a log file

console = Console(stderr=True)
stdout = Console()
_recorders: list[Callable[[str], None]] = []  # see `recorded`


@contextmanager
def recorded(record: Callable[[str], None]) -> Iterator[None]:
    """Call `record` with each message that is logged inside, such as to write it to a file."""
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)


def log(text: str, style: str | None = None) -> None:
    """Print a message on standard error, verbatim and unwrapped so that paths can be copied."""
    text = printable(text)
    for record in _recorders:
        record(text)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on standard error, in yellow."""
    log(text, "yellow")


def warn_of_first(texts: Sequence[str], count: int, rest: str = "more") -> None:
    """Print the first `count` warnings, and how many more there are.

    Args:
        rest: what the others are called, after their number.
    """
    for text in texts[:count]:
        warn(text)
    if len(texts) > count:
        warn(f"and {len(texts) - count:,} {rest}")


class _ProgressBar(progress.Progress):
    """A progress bar that logs a line per minute if it is disabled."""

    _logged = 0.0  # elapsed seconds of the task

    def advance(self, task_id: progress.TaskID, advance: float = 1) -> None:
        self.update(task_id, advance=advance)

    def update(self, task_id: progress.TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        task = next(each for each in self.tasks if each.id == task_id)
        if self.disable and (task.elapsed or 0) - self._logged >= SECONDS_PER_LINE:
            self._logged = task.elapsed or 0
            cells = (each(task) for each in self.columns if not isinstance(each, str))
            log(" ".join(cell.plain for cell in cells if isinstance(cell, Text)))


def progress_bar(*columns: progress.ProgressColumn | str) -> progress.Progress:
    """Return a transient progress bar; if standard error is no terminal, a line per minute.

    Args:
        columns: between the bar and the elapsed time.
    """
    return _ProgressBar(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *(progress.TextColumn(each) if isinstance(each, str) else each for each in columns),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def track(items: Iterable[T], description: str) -> Iterator[T]:
    """Yield the items, and count them on a progress bar, up to `len(items)` if they have it."""
    with progress_bar(progress.MofNCompleteColumn(), progress.TimeRemainingColumn()) as bar:
        yield from bar.track(items, description=description)
