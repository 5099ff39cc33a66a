"""A measure of one's own, as CONTRIBUTING.md shows it, is summarised and written like the others."""

from pathlib import Path

import pytest

from musicgen.cli.evaluate import read_inputs, run_measure
from musicgen.evaluation.runs import Inputs
from musicgen.files import read_csv
from musicgen.midi import Score, Track, find_music, notes_from, read, write
from musicgen.report.tables import TableRow


def notes_per_beat(inputs: Inputs, out: Path, *, lowest: int) -> list[TableRow]:
    """Return how many notes from a lowest pitch on each generated file has in a beat."""
    rows: list[TableRow] = []
    for path in find_music(Path(str(inputs.generated))):
        score = read(path)
        count = sum(int((track.notes["pitch"] >= lowest).sum()) for track in score.tracks)
        beats = score.end / score.ticks_per_beat
        rows.append({"piece": path.name, "part": "all", "value": count / beats})
    return rows


def test_a_measure_of_ones_own_is_summarised_and_written(config, tmp_path):
    for number in (1, 2, 3):  # notes a beat
        length = 480 // number
        notes = [(length * i, length, 60, 64) for i in range(4 * number)]
        notes.append((0, 480, 40, 64))  # below the lowest pitch
        score = Score(480, [Track("Piano", notes=notes_from(notes))])
        write(score, tmp_path / f"{number}.mid")
    inputs = read_inputs({**config("evaluate"), "generated": str(tmp_path)})
    settings = {"_target_": f"{__name__}.notes_per_beat", "_partial_": True, "lowest": 50}
    (row,) = run_measure("notes_per_beat", settings, inputs, tmp_path / "out")
    assert (row["part"], row["n"]) == ("all", 3)
    assert row["mean"] == pytest.approx(2)
    of_pieces = read_csv(tmp_path / "out/notes_per_beat_pieces.csv")
    assert [float(each["value"]) for each in of_pieces] == [1, 2, 3]
