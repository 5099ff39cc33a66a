"""Anchors of style similarity: what real music reaches, so that a figure has a scale.

A part of a piece, as long as a continuation, stands in for the continuation and is compared with
its own piece (`same song`, what the composer's own continuation reaches) and with other pieces of
the same style, of other styles of the same family, and of other families (`chance`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from musicgen.metrics.style import PROFILES, Profile, Profiles, mean_similarity, style_profiles
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score

ANCHORS = ("chance", "same family", "same style", "same song")
NUM_PARTNERS = 4

_IN_NAME = re.compile(r"[^./]+\.(?P<style>(?P<family>.+)_[^_]+)\.midi?", re.IGNORECASE)


class StyleLabel(NamedTuple):
    """The style of a piece and the family of its style; empty if unknown."""

    style: str = ""
    family: str = ""


def style_labels(names: Iterable[str], pattern: str = "auto") -> dict[str, StyleLabel]:
    """Return the label of each file from its name, a relative path with forward slashes.

    Args:
        pattern: `auto` reads names such as `SONG.FAMILY_x.mid`, whose style is `FAMILY_x`, and
            otherwise folders: `FAMILY/STYLE/song.mid` or `STYLE/song.mid`. Or a regular expression
            for all of a name, with a group `style` and optionally a group `family`.
    """
    if pattern == "auto":
        return {name: _label(name) for name in names}
    labels = {}
    for name in names:
        match = re.fullmatch(pattern, name)
        found = match.groupdict() if match else {}
        labels[name] = StyleLabel(found.get("style") or "", found.get("family") or "")
    return labels


def _label(name: str) -> StyleLabel:
    path = PurePosixPath(name)
    if match := _IN_NAME.fullmatch(path.name):
        return StyleLabel(match["style"], match["family"])
    family, _, style = path.parent.as_posix().rpartition("/")
    return StyleLabel("" if style == "." else f"{family}/{style}".lstrip("/"), family)


def anchor_similarities(
    parts: Iterable[tuple[str, Score]],
    labels: Mapping[str, StyleLabel],
    read: Callable[[str], Score | None],
    *,
    seed: int = 0,
) -> dict[Profile, dict[str, list[float]]]:
    """Compute each part's mean similarity to pieces of each relation of `ANCHORS`.

    Args:
        parts: names of pieces, each with the part of it that stands in for a continuation.
        labels: of all pieces that may be partners, by name.
        read: returns the piece of a name; None leaves it out.
        seed: decides the draws of `NUM_PARTNERS` pieces for each part and relation.

    Returns:
        By profile and anchor, one value a part; NaN without a partner or a common role.
    """
    rng = np.random.default_rng(seed)

    @cache
    def profiles_of(name: str) -> list[Profiles] | None:
        score = read(name)
        return None if score is None else [style_profiles(score, profile) for profile in PROFILES]

    result: dict[Profile, dict[str, list[float]]] = {
        profile: {anchor: [] for anchor in ANCHORS} for profile in PROFILES
    }
    for name, part in parts:
        own = [style_profiles(part, profile) for profile in PROFILES]
        for anchor, partners in draw_partners(name, labels, NUM_PARTNERS, rng).items():
            wholes = [found for partner in partners if (found := profiles_of(partner))]
            for index, profile in enumerate(PROFILES):
                values = [mean_similarity(own[index], whole[index]) for whole in wholes]
                result[profile][anchor].append(mean_of_valid(np.array(values)))
    return result


def draw_partners(
    name: str, labels: Mapping[str, StyleLabel], num_partners: int, rng: np.random.Generator
) -> dict[str, list[str]]:
    """Draw up to `num_partners` other pieces of each relation to a piece; `same song` is itself.

    A piece without a label has only chance partners; a style without a family is its own family.
    """
    mine = labels[name]
    related: dict[str, list[str]] = {anchor: [] for anchor in ANCHORS}
    for other, label in labels.items():
        if other == name:
            continue
        if mine.style and label == mine:
            related["same style"].append(other)
        elif mine.family and label.family == mine.family:
            related["same family"].append(other)
        else:
            related["chance"].append(other)
    drawn = {
        anchor: [others[i] for i in rng.permutation(len(others))[:num_partners]]
        for anchor, others in related.items()
    }
    return drawn | {"same song": [name]}
