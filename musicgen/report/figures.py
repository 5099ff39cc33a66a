"""Figures as files, and a piano roll as an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from musicgen.console import warn
from musicgen.files import atomic_path
from musicgen.midi import Score
from musicgen.text import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOWEST, _HIGHEST = 36, 84  # pitches that every piano roll shows


def save_figure(figure: Figure, path: str | Path, *, dpi: int) -> None:
    """Write a figure atomically, in the format of the suffix (.png, .svg, .pdf).

    `$` in a name does not begin a formula. If the figure cannot be drawn, there is a warning and no
    file.
    """
    from matplotlib.text import Text

    for each in figure.findobj(Text):
        each.set_parse_math(False)
    try:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=dpi)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        Path(path).unlink(missing_ok=True)  # an earlier figure
        warn(f"{path}: not drawn: {' '.join(str(error).split())}")


def plot_piano_roll(score: Score, path: str | Path, mark: int) -> NDArray[np.uint8]:
    """Plot notes over beats, with a colour per track; return the image [height, width, RGB].

    Args:
        score: the notes.
        path: see `save_figure`.
        mark: tick of a vertical line, such as the end of the prompt.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    beat = score.ticks_per_beat
    for number, track in enumerate(track for track in score.tracks if len(track.notes)):
        notes = track.notes
        name = "drums" if track.is_drum else shortened(track.name) or f"program {track.program}"
        axes.barh(
            notes["pitch"],
            notes["duration"] / beat,
            height=0.9,
            left=notes["onset"] / beat,
            color=f"C{number % 10}",
            label=name,
        )
    axes.axvline(mark / beat, color="grey", linestyle="--")
    pitches = np.append([_LOWEST, _HIGHEST], score.notes["pitch"])
    axes.set(xlabel="beat", ylabel="MIDI pitch", ylim=(pitches.min() - 1, pitches.max() + 1))
    axes.set_xlim(0, max(score.end, 1) / beat)
    if axes.patches:
        axes.legend(loc="upper right", fontsize="small")
    save_figure(figure, path, dpi=100)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
