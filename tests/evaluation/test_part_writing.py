"""Part writing of generated pieces in four voices, compared with their originals."""

import json
from dataclasses import replace

import pytest

from musicgen.errors import UserError
from musicgen.midi import write
from tests.metrics.builders import four_parts as piece

BEAT = 12
G, C = (71, 67, 62, 43), (72, 67, 64, 48)
RISE = tuple(pitch + 2 for pitch in C)


@pytest.fixture
def rows_of(tmp_path, measure, inputs):
    """Write the pieces and their original, and measure them."""

    def run(original, generated, *rows):
        write(original, tmp_path / "originals/tune.mid")
        for name, score in generated.items():
            write(score, tmp_path / "generated" / name)
        places = {name: str(tmp_path / name) for name in ("generated", "originals")}
        manifest = {"pieces": rows, "references": places["originals"]}
        (tmp_path / "generated/generation.json").write_text(json.dumps(manifest))
        found = measure("part_writing")(inputs(generated=places["generated"]), tmp_path)
        return {(x["pieces"], x["measure"], x["piece"]): x["value"] for x in found}

    return run


def test_pieces_are_compared_with_their_originals(rows_of, capsys):
    five = piece(*((*chord, 40) for chord in (G, C)))
    prompts = [{"file": f"tune_{i}.mid", "prompt": "tune.mid"} for i in range(2)]
    found = rows_of(piece(G, C), {"tune_0.mid": piece(C, RISE), "tune_1.mid": five}, *prompts)
    assert "left out: tune_1.mid: 5 tracks with notes" in capsys.readouterr().err
    assert {name for *_, name in found} == {"tune_0.mid"}
    assert found["generated", "parallel_fifths", "tune_0.mid"] == 50
    assert found["originals", "parallel_fifths", "tune_0.mid"] == 0


def test_continuations_are_compared_with_as_much_of_the_original(rows_of):
    row = {"file": "tune.mid", "prompt": "tune.mid", "prompt end": 2 * BEAT, "prompt beats": 2}
    found = rows_of(piece(C, RISE, G, C, RISE), {"tune.mid": piece(C, RISE, C, G)}, row)
    # Neither the parallels of the prompts count, nor those after as much music.
    assert found["generated", "parallel_fifths", "tune.mid"] == 0
    assert found["originals", "parallel_fifths", "tune.mid"] == 0


def test_no_piece_in_four_voices_is_one_line(rows_of):
    tune = piece(G, C)
    with pytest.raises(UserError, match=r"^metrics=part_writing needs pieces in four voices"):
        rows_of(tune, {"tune.mid": replace(tune, tracks=tune.tracks[:1])})
