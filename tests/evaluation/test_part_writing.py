"""Four-part writing of generated pieces beside their originals'."""

import json
from dataclasses import replace

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import FERMATA, Marker, Score, Track, notes_from, write

BEAT = 480


def piece(*chords, fermatas=()):
    tracks = [
        Track(
            f"Voice {voice}",
            notes=notes_from([(i * BEAT, BEAT, c[voice], 80) for i, c in enumerate(chords)]),
        )
        for voice in range(len(chords[0]))
    ]
    return Score(BEAT, tracks, markers=[Marker(beat * BEAT, FERMATA) for beat in fermatas])


G, C, C6 = (71, 67, 62, 43), (72, 67, 64, 48), (72, 67, 60, 52)


@pytest.fixture
def folders(tmp_path):
    def make(*, generated, original):
        write(original, tmp_path / "originals/tune.mid")
        for name, score in generated.items():
            write(score, tmp_path / "generated" / name)
        return {name: str(tmp_path / name) for name in ("generated", "originals")}

    return make


def rows_of(measure, inputs, folders, out):
    where = {"generated": folders["generated"], "references": folders["originals"]}
    rows = measure("part_writing")(inputs(**where), out)
    return {row["measure"]: row for row in rows}


def test_phrases_of_harmonisations_end_at_the_fermatas_of_the_original(
    tmp_path, measure, inputs, folders, capsys
):
    where = folders(
        original=piece(G, C, G, C, fermatas=[1, 3]),
        generated={
            "tune_0.mid": piece(G, C6, G, C),
            "tune_1.mid": piece(G, C, C6, C),
            "tune_2.mid": piece(*((*chord, 40) for chord in (G, C, G, C))),
        },
    )
    rows = rows_of(measure, inputs, where, tmp_path)
    assert "left out: tune_2.mid: 5 tracks with notes" in capsys.readouterr().err
    closed, fifths = rows["closed_ends"], rows["fifth_ends"]
    assert (closed["n"], closed["generated"], closed["originals"]) == (2, 0.75, 1)
    assert (fifths["generated"], fifths["originals"]) == (0.5, 1)
    assert rows["phrase_ends"]["generated"] == 50
    lines = (tmp_path / "part_writing_pieces.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["piece", "tune_0.mid", "tune_1.mid"]


def test_pieces_of_which_parts_were_kept_count_from_their_beginning(
    tmp_path, measure, inputs, folders
):
    where = folders(original=piece(G, C, fermatas=[1]), generated={"tune.mid": piece(G, C6)})
    row = {"file": "tune.mid", "prompt": "tune.mid", "prompt end": 0, "prompt beats": 0}
    manifest = {"pieces": [row], "references": where["originals"]}
    (tmp_path / "generated/generation.json").write_text(json.dumps(manifest))
    rows = rows_of(measure, inputs, where, tmp_path)
    assert (rows["closed_ends"]["generated"], rows["closed_ends"]["originals"]) == (0, 1)


def test_continuations_are_compared_with_as_much_of_the_original(
    tmp_path, measure, inputs, folders
):
    rise = tuple(pitch + 2 for pitch in C)
    where = folders(
        original=piece(C, rise, G, C, G, fermatas=[1]), generated={"tune.mid": piece(C, rise, C, G)}
    )
    row = {"file": "tune.mid", "prompt": "tune.mid", "prompt end": 2 * BEAT, "prompt beats": 2}
    manifest = {"pieces": [row], "references": where["originals"]}
    (tmp_path / "generated/generation.json").write_text(json.dumps(manifest))
    rows = rows_of(measure, inputs, where, tmp_path)
    # The parallels of the prompts do not count, nor does their fermata.
    assert rows["parallel_fifths"]["generated"] == rows["parallel_fifths"]["originals"] == 0
    assert rows["phrase_ends"]["originals"] == 0
    assert np.isnan(rows["closed_ends"]["generated"])


def test_no_piece_in_four_voices_is_one_line(tmp_path, measure, inputs, folders):
    tune = piece(G, C)
    where = folders(original=tune, generated={"tune.mid": replace(tune, tracks=tune.tracks[:1])})
    with pytest.raises(UserError, match=r"^metrics=part_writing needs pieces in four voices"):
        rows_of(measure, inputs, where, tmp_path)
