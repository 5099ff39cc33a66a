"""Anchors of style similarity: what real music reaches, so that a figure has a scale.

A part of a piece stands in for a continuation and is compared with its own piece (`same song`, what
the composer's own continuation reaches) and with pieces of other styles (`chance`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath

import numpy as np

from musicgen.metrics.style import PROFILES, Profile, Profiles, mean_similarity, style_profiles
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score

ANCHORS = ("chance", "same song")
NUM_PARTNERS = 4

_IN_NAME = re.compile(r"[^./]+\.(.+_[^_]+)\.midi?", re.IGNORECASE)


def style_labels(names: Iterable[str]) -> dict[str, str]:
    """Return the style of each file from its name, a relative path with forward slashes.

    It is `STYLE_x` of a name such as `SONG.STYLE_x.mid`, otherwise the folder; empty without any.
    """
    labels = {}
    for name in names:
        path = PurePosixPath(name)
        match, folder = _IN_NAME.fullmatch(path.name), path.parent.as_posix()
        labels[name] = match[1] if match else "" if folder == "." else folder
    return labels


def anchor_similarities(
    parts: Iterable[tuple[str, Score]],
    labels: Mapping[str, str],
    read: Callable[[str], Score | None],
    *,
    seed: int = 0,
) -> dict[Profile, dict[str, list[float]]]:
    """Compute each part's mean similarity to its own piece and to pieces of other styles.

    Args:
        parts: names of pieces, each with the part of it that stands in for a continuation.
        labels: styles of all pieces that may be partners, by name; empty: it has none.
        read: returns the piece of a name; None leaves it out.
        seed: decides the draws of `NUM_PARTNERS` pieces of other styles for each part.

    Returns:
        By profile and anchor, one value a part; NaN without a partner or a common role.
    """
    rng = np.random.default_rng(seed)

    @cache
    def profiles_of(name: str) -> list[Profiles] | None:
        score = read(name)
        return None if score is None else [style_profiles(score, profile) for profile in PROFILES]

    result: dict[Profile, dict[str, list[float]]] = {p: {a: [] for a in ANCHORS} for p in PROFILES}
    for name, part in parts:
        own = [style_profiles(part, profile) for profile in PROFILES]
        others = [
            other
            for other, label in labels.items()
            if other != name and (not label or label != labels[name])
        ]
        drawn = rng.permutation(others)[:NUM_PARTNERS].tolist()
        for anchor, partners in zip(ANCHORS, (drawn, [name]), strict=True):
            wholes = [found for partner in partners if (found := profiles_of(partner))]
            for index, profile in enumerate(PROFILES):
                values = [mean_similarity(own[index], whole[index]) for whole in wholes]
                result[profile][anchor].append(mean_of_valid(np.array(values)))
    return result
