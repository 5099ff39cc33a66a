"""Write down how ten songs end: python -m benchmarks.ten_endings LIEDER

The songs are the first ones that benchmarks.tunes continues by songs-small, after 8 bars by 16 that
end (`ending=close`), and the continuations their first samples; none is chosen. The ends of the
originals are those of the whole songs. Harmonies and leading parts are read as by evaluate.py
(`metrics=cadences`); the bass is the lowest note of a harmony.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.tunes import continued, drawn, readers
from musicgen.metrics.cadences import ending, harmonies
from musicgen.metrics.melody import leading_part
from musicgen.midi import Score, pitched_notes
from musicgen.midi.key import Key, final_key, spelling

PIECES, SAMPLES = 16, 2  # the defaults of benchmarks.tunes
TOP = 3  # last notes of the leading part


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of OpenScore Lieder")
    parser.add_argument("--number", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("outputs/tunes"), help="as of tunes")
    args = parser.parse_args()
    of_tunes = argparse.Namespace(samples=SAMPLES, out=args.out)
    pieces = continued(of_tunes, "songs", args.folder, PIECES)[::SAMPLES]
    all_readers = readers("songs", args.folder)
    rows = []
    for i, piece in zip(drawn(all_readers, 8, 16, args.number), pieces, strict=False):
        original = piece.prompt.piece
        rows.append(
            {
                "song": measure.song_title(all_readers[i].args[0].name),
                "generated": end_of(piece.new_on_grid, final_key(piece.prompt.score), original),
                "original": end_of(original, final_key(original), original),
            }
        )
    measure.write_results(__file__, {"rows": rows})


def end_of(score: Score, key: Key | None, like: Score) -> dict[str, Any]:
    """Return the end of a piece: its last two harmonies and their bass, and the last notes on top.

    Lengths are in quarters. No key is found in a piece without notes; C major spells it.

    Args:
        like: see `leading_part`.
    """
    key = key or Key(0, major=True)
    names, ticks = spelling(key.fifths), score.ticks_per_beat
    last = harmonies(score, key)[-2:]
    notes, end = pitched_notes(score), ending(score, key, like)
    stops = [harmony.tick for harmony in last[1:]] + [score.end]
    bass = [
        notes["pitch"][
            (notes["onset"] < stop)
            & (notes["onset"] + notes["duration"] > harmony.tick + ticks // 8)
        ].min()
        for harmony, stop in zip(last, stops, strict=True)
    ]
    top = leading_part(score, like)[-TOP:]
    lengths = np.round(top["duration"] / ticks, 2).tolist()
    return {
        "key": key.name,
        "harmonies": [names[x.root] + ("m" if x.is_minor else "") for x in last],
        "bass": [note_name(int(pitch), names) for pitch in bass],
        "top": [
            [note_name(p, names), x] for p, x in zip(top["pitch"].tolist(), lengths, strict=True)
        ],
        "last note": round(end.last_length, 2),
        "dominant to tonic": end.is_dominant_tonic,
    }


def note_name(pitch: int, names: tuple[str, ...]) -> str:
    """Return the name of a MIDI pitch in a key's spelling: Bb3. 60 is C4."""
    name = names[pitch % 12]
    return f"{name}{pitch // 12 - 1 + (name == 'Cb') - (name == 'B#')}"


if __name__ == "__main__":
    main()
