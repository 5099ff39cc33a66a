"""The measures `style` and `style_over_time`: style similarity of continuations and originals."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from musicgen.console import track, warn
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.evaluation.references import Pair, open_pairs
from musicgen.evaluation.runs import Inputs
from musicgen.metrics.intervals import mean_of_valid
from musicgen.metrics.style import (
    PROFILES,
    anchor_similarities,
    mean_similarity,
    role_similarities,
    style_labels,
    style_profiles,
)
from musicgen.midi import Score
from musicgen.report.figures import save_figure
from musicgen.report.tables import TableRow
from musicgen.validation import check_int

NUM_PARTS = 4  # parts of a continuation, as in Liutkus et al. 2021
WHOLE = "all"
PARTS = tuple(f"{k} of {NUM_PARTS}" for k in range(1, NUM_PARTS + 1))


def style(inputs: Inputs, out: Path, *, anchor_pieces: int) -> list[TableRow]:
    """Return the style similarity of continuations to their originals, in whole, parts and roles.

    As in Liutkus et al. 2021 (appendix C.2), the continuation without its prompt is compared with
    the whole original. There are values for the whole continuation, for four parts of equal length,
    and per role. Anchors are the similarities of human music (see `anchor_similarities`).

    Args:
        anchor_pieces: number of originals for the anchors; 0: no anchors.
    """
    check_int("anchor_pieces", anchor_pieces, minimum=0)
    originals, pairs = open_pairs(inputs, inputs.generated, "style")
    rows = [row for pair in track(pairs, "style") for row in piece_rows(pair)]
    first = {pair.name: pair for pair in reversed(pairs)}
    names = evenly_spaced(sorted(first), anchor_pieces)

    def original(name: str) -> Score | None:
        try:
            return originals[name]()
        except UserError as error:
            warn(f"left out: {error}")
            return None

    parts = [(name, first[name].original_continuation()) for name in names]
    labels = style_labels(originals)
    anchors = anchor_similarities(track(parts, "anchors"), labels, original, seed=inputs.seed)
    rows += [
        {"piece": name, "profile": profile, "part": anchor, "value": value}
        for profile, by_anchor in anchors.items()
        for anchor, values in by_anchor.items()
        for name, value in zip(names, values, strict=True)
    ]
    defined = {(row["profile"], row["part"]) for row in rows if not np.isnan(row["value"])}
    return [row for row in rows if (row["profile"], row["part"]) in defined]


def style_over_time(inputs: Inputs, out: Path) -> list[TableRow]:
    """Return the style similarity of successive parts of continuations, for one or more folders.

    Each of four parts of a continuation is compared with the whole original (Liutkus et al. 2021,
    figure 5). The column `piece` has the name of a style, whose value is the mean over its pieces,
    or the name of a piece without a style.
    """
    folders = inputs.compare or ([inputs.generated] if inputs.generated else [])
    if not folders:
        raise UserError("metrics=style_over_time: give generated=DIR, or 'compare=[DIR1,DIR2]'")
    points: dict[tuple[str, ...], list[float]] = {}
    for folder in folders:
        originals, pairs = open_pairs(inputs, folder, "style_over_time")
        labels = style_labels(originals)
        for pair in track(pairs, Path(folder).name):
            for row in piece_rows(pair):
                if row["part"] in PARTS:
                    key = folder, row["profile"], row["part"], labels[pair.name] or pair.name
                    points.setdefault(key, []).append(row["value"])
    names = ("generated", "profile", "part", "piece")
    rows: list[TableRow] = [
        {**dict(zip(names, key, strict=True)), "value": mean_of_valid(values)}
        for key, values in points.items()
    ]
    # A profile may be undefined for all pieces, such as that of drums without drums.
    defined = {row["profile"] for row in rows if not np.isnan(row["value"])}
    rows = [row for row in rows if row["profile"] in defined]
    plot_style_over_time(rows, out / "style_over_time.png")
    return rows


def piece_rows(pair: Pair) -> Iterator[TableRow]:
    """Yield rows with the similarities of a continuation: in whole, in four parts, and by role."""
    chunks = {WHOLE: (0, 1)} | {part: (k, NUM_PARTS) for k, part in enumerate(PARTS)}
    names = {"piece": pair.file, "original": pair.name}
    for profile in PROFILES:
        target = style_profiles(pair.reference, profile)
        profiles = {
            part: style_profiles(pair.continuation, profile, chunk)
            for part, chunk in chunks.items()
        }
        values = {part: mean_similarity(each, target) for part, each in profiles.items()}
        values |= role_similarities(profiles[WHOLE], target)
        for part, value in values.items():
            yield {**names, "profile": profile, "part": part, "value": value}


def plot_style_over_time(points: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Plot the style similarity of continuations by part, as in Liutkus et al. 2021, figure 5.

    A dot is a style. A line connects the means of a model.

    Args:
        points: rows of `style_over_time`. NaN is left out.
        path: see `save_figure`.
    """
    parts = sorted({point["part"] for point in points})
    points = [point for point in points if not np.isnan(point["value"])]
    models, profiles = (
        list(dict.fromkeys(point[key] for point in points)) for key in ("generated", "profile")
    )
    figure = Figure(figsize=(0.6 + 3.4 * len(profiles), 3.6), layout="constrained")
    panels = figure.subplots(1, len(profiles), sharey=True, squeeze=False)[0]
    for axes, profile in zip(panels, profiles, strict=True):
        for number, model in enumerate(models):
            shift = 0.6 * ((number + 0.5) / len(models) - 0.5)
            dots = [
                (parts.index(point["part"]) + shift, point["value"])
                for point in points
                if (point["generated"], point["profile"]) == (model, profile)
            ]
            x, y = np.array(dots).reshape(-1, 2).T
            places = np.unique(x)
            means = [y[x == place].mean() for place in places]
            (line,) = axes.plot(places, means, marker="_", markersize=12, label=model)
            axes.scatter(x, y, s=6, alpha=0.4, color=line.get_color())
        axes.set_xticks(range(len(parts)), parts)
        axes.set(title=profile.replace("_", "–"), xlabel="part of the continuation")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="style similarity (1 is best)", ylim=(0, 1.02))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save_figure(figure, path, dpi=150)
