"""Split music21's chorales by Bach so that no melody and no bass is in two splits.

    python -m benchmarks.chorale_split jsb_chorales.json.xz

Two pieces are related if a voice of one shares the part `SAME` or more of its runs of eight melodic
intervals with the same voice of the other, in any key. The relation is transitive, and includes the
pieces of the JSB chorales' training and validation splits. Pieces that are related to one of the
JSB training pieces are for training. Of the others, pieces related to one of the JSB validation
pieces are for validation, and the rest is for testing. The script writes `bach_chorales.json` into
the package, and counts to `benchmarks/results/chorale_split.json`.
"""

import json
import re
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.measure import RESULTS, ROOT
from musicgen.data.corpora import BachChorales, JSBChorales
from musicgen.data.corpora.chorales import four_voices
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.midi import Score, find_music, read

SAME, LENGTH = 0.3, 8


def runs(score: Score) -> list[set[bytes]]:
    """Return the runs of intervals between different pitches of each voice."""
    found = []
    for track in score.tracks:
        # Of notes that begin together, take the highest.
        last = np.flatnonzero(np.diff(track.notes["onset"], append=-1))
        pitches = track.notes["pitch"][last]
        steps = np.diff(pitches)
        steps = steps[steps != 0].astype(np.int8)
        found.append({steps[i : i + LENGTH].tobytes() for i in range(len(steps) - LENGTH + 1)})
    return found


def likeness(one: list[set[bytes]], other: list[set[bytes]]) -> float:
    """Return the largest share of a voice's runs that the same voice of the other piece has."""
    pairs = zip(one, other, strict=True)
    return max(len(a & b) / max(1, min(len(a), len(b))) for a, b in pairs)


def groups(pieces: list[list[set[bytes]]]) -> list[int]:
    """Return the number of the group of each piece."""
    pairs = combinations(range(len(pieces)), 2)
    edges = np.array([(i, j) for i, j in pairs if likeness(pieces[i], pieces[j]) >= SAME])
    graph = coo_array((np.ones(len(edges)), tuple(edges.T)), shape=2 * (len(pieces),))
    return connected_components(graph, directed=False)[1].tolist()


def split_chorales(names: dict[str, str], group: dict[str, int]) -> dict[str, list[str]]:
    """Return the names of music21's pieces by split; `names` maps every piece to its source."""
    sources: dict[int, set[str]] = {}
    for name, source in names.items():
        sources.setdefault(group[name], set()).add(source)
    splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, source in names.items():
        if source == "music21":
            own = sources[group[name]]
            splits["train" if "train" in own else "val" if "val" in own else "test"].append(name)
    return splits


def notice(path: Path) -> str:
    """Return what a file says about rights: the printed lines with a copyright sign, or `none`."""
    if path.suffix == ".krn":
        text = path.read_text("latin-1")
        return "; ".join(re.findall(r"^!!!YE[CM]: *(.*)", text, re.MULTILINE))
    score = path.read_bytes()
    if path.suffix == ".mxl":
        with ZipFile(path) as archive:  # it holds the score and a small container
            score = archive.read(max(archive.infolist(), key=lambda file: file.file_size))
    words = (item.text or "" for item in ElementTree.fromstring(score).iter())
    lines = {" ".join(text.split()) for text in words if re.search("©|copyright|licen[cs]e", text)}
    return "; ".join(sorted(lines)) or "none"


def main(jsb_path: str) -> None:
    sources, pieces, left_out = {}, [], {}
    notices: dict[str, list[str]] = {}
    folder = BachChorales().root
    for path in find_music(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".krn":
            left_out[name] = notice(path)
            continue
        try:
            score = four_voices(read(path))
        except UserError as error:
            left_out[name] = str(error)
            continue
        notices.setdefault(notice(path), []).append(name)
        sources[name] = "music21"
        pieces.append(runs(score))
    jsb = JSBChorales(jsb_path)
    for piece in jsb.pieces():
        sources[f"jsb/{piece.name}"] = str(piece.split)
        pieces.append(runs(jsb.read_piece(piece)))
    group = dict(zip(sources, groups(pieces), strict=True))
    splits = split_chorales(sources, group)
    kinds = Counter(sources.values())
    result = {
        "command": "python -m benchmarks.chorale_split jsb_chorales.json.xz",
        "pieces": {split: len(names) for split, names in splits.items()},
        "groups": {split: len({group[n] for n in names}) for split, names in splits.items()},
        "jsb pieces": {split: kinds[split] for split in ("train", "val")},
        "left out": left_out,
        "notices": {text: len(names) for text, names in notices.items()},
        "without a notice": notices["none"],
    }
    text = {split: " ".join(names) for split, names in splits.items()}
    package = ROOT / "musicgen/data/corpora/bach_chorales.json"
    write_text(package, json.dumps(text, indent=1) + "\n")
    write_text(RESULTS / "chorale_split.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
