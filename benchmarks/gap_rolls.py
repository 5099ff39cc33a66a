"""Draw the first gaps of songs that benchmarks.gaps measures: python -m benchmarks.gap_rolls LIEDER

The gaps, their order and what songs-small writes into them are those of benchmarks.gaps.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import musicgen
from benchmarks.gaps import Place, Sizes, held_out_pieces, places, written
from benchmarks.measure import ROOT, song_title
from musicgen.metrics.melody import leading_part
from musicgen.midi import Score, pitched_notes
from musicgen.report.figures import save_figure

SHOWN = 10  # gaps
SIDE = 4  # bars before and behind a gap
PIECES = 20  # the default of benchmarks.gaps
GREY, ACCENT = ("#a0a0a0", "#303030"), ("#f0935f", "#b82500")  # other parts, leading part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="of OpenScore Lieder")
    parser.add_argument("--out", type=Path, default=Path("outputs/gaps"), help="as of gaps")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs/gaps.png")
    args = parser.parse_args()
    songs = held_out_pieces("openscore_lieder", args.folder, PIECES)
    model = musicgen.load("songs-small")
    found = [*places(model, [*songs.values()], Sizes())]
    filled = written(model, found, args.out / "songs-small openscore_lieder.pickle")
    titles = [song_title([*songs][place.piece]) for place in found]
    figure = gap_rolls(found[:SHOWN], filled[:SHOWN], titles[:SHOWN])
    save_figure(figure, args.figure, dpi=100)


def gap_rolls(found: list[Place], filled: list[Score], titles: list[str]) -> Figure:
    """Return a row per gap: past, filled gap and future, and the original's gap on the right."""
    figure = Figure(figsize=(10, 1.5 * len(found) + 0.5), layout="constrained")
    ratios = {"width_ratios": (2 * SIDE + found[0].sizes.gap, found[0].sizes.gap)}
    rows = figure.subplots(len(found), 2, sharey="row", squeeze=False, gridspec_kw=ratios)
    for (left, right), place, score, title in zip(rows, found, filled, titles, strict=True):
        first, last = place.bar, place.bar + place.sizes.gap
        draw(left, score, place.score, (first - SIDE, last + SIDE), (first, last))
        draw(right, place.score, place.score, (first, last), None)
        spans = [axes.dataLim.intervaly for axes in (left, right)]
        left.set_ylim(np.min(spans) - 1, np.max(spans) + 1)
        left.set_title(f"{title}, bars {first + 1}–{last}", fontsize=9, loc="left", pad=3)
        left.axvspan(first, last, color=ACCENT[0], alpha=0.12, linewidth=0)
        for border in first, last:
            left.axvline(border, color=ACCENT[1], linewidth=1.2)
    rows[0, 1].set_title("the original's gap", fontsize=9, loc="left", pad=3)
    labels = ("piano", "voice", "piano, new", "voice, new")
    patches = [Patch(color=x, label=name) for x, name in zip(GREY + ACCENT, labels, strict=True)]
    figure.legend(handles=patches, loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    return figure


def draw(
    axes: Any, score: Score, like: Score, bars: tuple[int, int], gap: tuple[int, int] | None
) -> None:
    """Draw the notes of some bars, those that begin in the gap with the accent colours.

    Args:
        like: the original, whose leading part and bars count.
    """
    lines = np.append(like.bar_starts(), like.end)
    a, b = (int(lines[bar]) for bar in bars)
    notes = [
        x[(x["onset"] < b) & (x["onset"] + x["duration"] > a)]
        for x in (pitched_notes(score), leading_part(score, like))
    ]
    for layer, some in enumerate(notes):  # the leading part above all notes
        begin, end = (
            np.interp(ticks, lines, range(len(lines)))
            for ticks in (some["onset"], some["onset"] + some["duration"])
        )
        is_new = np.zeros(len(some), bool) if gap is None else (begin >= gap[0]) & (begin < gap[1])
        colors = np.where(is_new, ACCENT[layer], GREY[layer])
        left, right = np.clip(begin, *bars), np.clip(end, *bars)
        axes.barh(some["pitch"], right - left - 0.02, height=1.2, left=left, color=colors)
    axes.set_xlim(*bars)
    axes.set_xticks(range(bars[0], bars[1] + 1), [])
    octaves = range(8)
    axes.set_yticks(
        [12 * octave + 12 for octave in octaves], [f"C{x}" for x in octaves], fontsize=7
    )
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_color("#cccccc")


if __name__ == "__main__":
    main()
