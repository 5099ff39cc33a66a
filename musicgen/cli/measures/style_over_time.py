"""The measure `style_over_time` of `evaluate`: whether continuations keep their style."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from musicgen.cli.measures.references import open_references, pair_files, read_manifest
from musicgen.cli.measures.style import CHUNKS, piece_rows, pool
from musicgen.console import progress_bar
from musicgen.errors import UserError, parameter_of
from musicgen.metrics import PROFILES, Summary
from musicgen.metrics.style_anchors import style_labels
from musicgen.metrics.summary import mean_of_valid
from musicgen.report.plots import plot_over_chunks
from musicgen.report.tables import write_csv, write_latex

Row = dict[str, Any]


def style_over_time(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute the style similarity of successive parts of continuations, of one or more folders.

    Each part of a continuation is compared with the whole piece of its prompt. A point of the
    figure is a style, the mean over its pieces, or a piece whose name tells no style (Liutkus et
    al. 2021, figure 5). Writes the points as CSV, and the table as LaTeX.
    """
    given = cfg.compare or [cfg.generated]
    if given == [None]:
        raise UserError("metrics=style_over_time: give generated=DIR, or 'compare=[DIR1,DIR2]'")
    points: list[Row] = []
    for folder in given:
        points += _points(cfg, str(folder))
    rows = []
    for name in dict.fromkeys(point["generated"] for point in points):
        for profile in PROFILES:
            for chunk in CHUNKS:
                values = [
                    point["similarity"]
                    for point in points
                    if (point["generated"], point["profile"]) == (name, profile)
                    and point["chunk"] == chunk
                ]
                key = {"generated": name, "profile": profile, "part": chunk}
                rows.append({**key, **asdict(Summary.of(values, seed=cfg.seed))})
    defined = {row["profile"] for row in rows if row["n"]}  # that of drums needs drums
    rows = [row for row in rows if row["profile"] in defined]
    write_csv(points, out / "style_over_time_styles.csv")
    plot_over_chunks(points, out / "style_over_time.png")
    (title,) = chunk_tables(rows)
    write_latex(chunk_tables(rows)[title], out / "style_over_time.tex")
    return rows


def _points(cfg: DictConfig, given: str) -> list[Row]:
    """Return the mean similarity of each style of a folder, by profile and chunk."""
    folder = Path(given).expanduser()
    manifest = read_manifest(folder)
    references = open_references(cfg, manifest)
    with parameter_of("style"):
        labels = style_labels(references.sources, str(cfg.style.pattern))
    pairs, _ = pair_files(folder, manifest, references)
    found: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    with progress_bar(MofNCompleteColumn()) as progress:
        comparisons = pool(pairs, None, labels)
        for comparison in progress.track(comparisons, description=folder.name):
            style = labels[comparison.reference].style or comparison.reference
            for row in piece_rows(comparison):
                if row["role"] == "all" and row["chunk"] != "all":
                    found[row["profile"], row["chunk"], style].append(row["similarity"])
    keys = ("profile", "chunk", "style")
    return [
        {
            "generated": given,
            **dict(zip(keys, key, strict=True)),
            "pieces": len(values),
            "similarity": mean_of_valid(np.array(values)),
        }
        for key, values in found.items()
    ]


def chunk_tables(rows: list[Row]) -> dict[str, list[Row]]:
    """Return what the terminal shows: means over styles, a column for each part."""
    table: dict[tuple[str, str], Row] = {}
    for row in rows:
        names = {"generated": row["generated"], "profile": row["profile"]}
        table.setdefault((row["generated"], row["profile"]), names)[row["part"]] = row["mean"]
    return {"style_over_time, by part of the continuation": list(table.values())}
