"""Bands that nobody here composed, continued: python -m benchmarks.bands --root FOLDER

FOLDER holds accompaniments made with MMA, named SONG.FAMILY_STYLE.mid. One piece of each of
`--pieces` families, evenly spaced, is continued from its first 8 bars by 16. Beside each measure
of the continuation stands that of the piece's own next 16 bars, and of the rhythm that of the next
bars of the other pieces:

- rhythm, drums: style similarity to the prompt, by onset and duration, and by onset and drum;
- in key: share of the notes in the prompt's key;
- pitches: how many there are of them;
- notes in a bar;
- hanging: notes of the file that end after the prompt and sound for more than two bars.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import musicgen
from benchmarks.measure import write_results
from musicgen.data.corpora.base import evenly_spaced
from musicgen.generation.prompts import Prompt
from musicgen.metrics.key import find_key, in_key_share
from musicgen.metrics.style import style_similarity
from musicgen.metrics.summary import Summary, mean_of_valid
from musicgen.midi import Score, find_midi, loads, pitched_notes

PROMPT_BARS, BARS = 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--model", default="groove-small")
    parser.add_argument("--pieces", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    files = {path.stem.partition(".")[2].partition("_")[0]: path for path in find_midi(args.root)}
    names = evenly_spaced(sorted(files), args.pieces)
    model = musicgen.load(args.model)
    paths = [files[name] for name in names]
    pieces = model.generate(paths, prompt_bars=PROMPT_BARS, bars=BARS, seed=0)
    own = [piece.prompt.piece.clip(*bounds(piece.prompt)) for piece in pieces]
    rows = []
    for i, (name, piece) in enumerate(zip(names, pieces, strict=True)):
        prompt, file = piece.prompt, piece.midi_file()
        assert prompt.source is not None
        row = {"piece": name}
        for side, new, data, end in (
            ("continued", piece.new_score, file.data, file.prompt_end),
            ("own", own[i], prompt.source.data, prompt.source.end),
        ):
            row |= {f"{what}, {side}": x for what, x in measures(new, prompt.score).items()}
            row[f"hanging, {side}"] = hanging(loads(data), end)
        others = [style_similarity(other, prompt.score) for other in own if other is not own[i]]
        row["rhythm, others"] = mean_of_valid(np.array(others))
        rows.append(row)
    summary = {}
    for what in [name for name in rows[0] if name != "piece"]:
        found = Summary.of(row[what] for row in rows)
        summary[what] = {"mean": found.mean, "low": found.low, "high": found.high}
        print(f"{what}: {found.mean:.3f} ({found.low:.3f} to {found.high:.3f})")
    command = f"python -m benchmarks.bands --root FOLDER --model {args.model}"
    content = {"command": command, "summary": summary, "rows": rows}
    write_results(__file__, content, args)


def bounds(prompt: Prompt) -> tuple[int, int]:
    """Return the ticks between which the piece goes on as long as the continuation."""
    return prompt.end_tick, prompt.end_tick + BARS * prompt.end_tick // PROMPT_BARS


def measures(music: Score, prompt: Score) -> dict[str, float]:
    """Return the measures of some bars beside a prompt."""
    notes = pitched_notes(music)
    return {
        "rhythm": style_similarity(music, prompt),
        "drums": style_similarity(music, prompt, "onset_drum"),
        "in key": in_key_share(music, find_key(pitched_notes(prompt))),
        "pitches": len(np.unique(notes["pitch"])),
        "notes in a bar": music.num_notes / BARS,
    }


def hanging(score: Score, start: int) -> int:
    """Return how many notes that end after a tick sound for more than eight beats."""
    notes = score.notes
    long = notes["duration"] > 8 * score.ticks_per_beat
    return int((long & (notes["onset"] + notes["duration"] > start)).sum())


if __name__ == "__main__":
    main()
