"""The measure `descriptors` of `evaluate`: continuations beside the originals' own."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.progress import MofNCompleteColumn

from musicgen.cli.measures.references import Pair, open_references, pair_files, read_manifest
from musicgen.console import progress_bar
from musicgen.errors import UserError
from musicgen.metrics.descriptors import (
    descriptors,
    distribution_distance,
    find_key,
    in_key_share,
)
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score
from musicgen.report.tables import write_csv

Row = dict[str, Any]


def descriptors_measure(cfg: DictConfig, out: Path) -> list[Row]:
    """Compute descriptors of continuations and of the music that follows their prompts.

    Both are equally long, without the prompt; see `musicgen.metrics.descriptors`. `in_key_share`
    is the share of notes in the prompt's key. Writes `descriptors_pieces.csv`.
    """
    if not cfg.generated:
        raise UserError("metrics=descriptors needs generated=, a folder that generate.py wrote")
    folder = Path(cfg.generated).expanduser()
    manifest = read_manifest(folder)
    pairs, _ = pair_files(folder, manifest, open_references(cfg, manifest))
    generated: defaultdict[str, list[float]] = defaultdict(list)
    originals: defaultdict[str, list[float]] = defaultdict(list)
    details = []
    seen: set[str] = set()
    with progress_bar(MofNCompleteColumn()) as progress:
        for pair in progress.track(pairs, description="descriptors"):
            found = describe(pair.continuation, pair)
            details.append({"piece": pair.file, "reference": pair.name, **found})
            for name, value in found.items():
                generated[name].append(value)
            if pair.name not in seen:  # each original counts once, not once a sample
                seen.add(pair.name)
                for name, value in describe(pair.own_continuation(), pair).items():
                    originals[name].append(value)
    write_csv(details, out / "descriptors_pieces.csv")
    rows = []
    for name in generated:
        new, old = np.array(generated[name]), np.array(originals[name])
        overlap, divergence = distribution_distance(new, old)
        rows.append(
            {
                "descriptor": name,
                "n": int((~np.isnan(new)).sum()),
                "generated": mean_of_valid(new),
                "originals": mean_of_valid(old),
                "overlap": overlap,
                "KL": divergence,
            }
        )
    return rows


def describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return the descriptors of the continuation of a pair, or of the original's own."""
    reference = pair.reference
    prompt = reference.clip(0, round(pair.prompt_beats * reference.ticks_per_beat))
    key = find_key(prompt if prompt.num_notes else reference)
    return {**descriptors(score), "in_key_share": in_key_share(score, key)}
