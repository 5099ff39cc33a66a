"""evaluate.py's measure of style by part of the continuation, over several folders."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from musicgen.composer import compose_groove
from musicgen.errors import UserError
from musicgen.evaluation.style import PARTS
from musicgen.metrics.style import style_similarity
from musicgen.midi import write


def test_each_style_of_each_folder_by_hand(tmp_path, inputs, measure):
    originals, other = {}, compose_groove(seed=5, family="funk", style=0, song=0)
    for style in (0, 1):
        for song in range(2):
            score = compose_groove(seed=0, family="rock", style=style, song=song)
            originals[style, song] = score
            name = f"rock/style{style}/s{style}{song}.mid"
            write(score, tmp_path / "R" / name)
            write(score, tmp_path / "A" / name)
            write(other, tmp_path / "B" / name)
    folders = [str(tmp_path / "A"), str(tmp_path / "B")]
    style_over_time = measure("style_over_time")
    given = inputs(compare=folders, references=str(tmp_path / "R"))
    rows = style_over_time(given, tmp_path)
    points = {(p["generated"], p["profile"], p["piece"], p["part"]): p["value"] for p in rows}
    for folder, music in zip(folders, (originals, dict.fromkeys(originals, other)), strict=True):
        for style in (0, 1):
            for part in range(4):
                found = [
                    style_similarity(music[key], originals[key], "time_pitch", (part, 4))
                    for key in ((style, song) for song in range(2))
                ]
                point = points[folder, "time_pitch", f"rock/style{style}", f"{part + 1} of 4"]
                assert point == pytest.approx(np.mean(found))
    # The other music is less alike.
    for style, part in product(("rock/style0", "rock/style1"), PARTS):
        own, moved = (points[folder, "onset_duration", style, part] for folder in folders)
        assert own > moved
    assert (tmp_path / "style_over_time.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="give generated=DIR"):
        style_over_time(inputs(), tmp_path)


def test_a_part_without_notes_is_na_and_keeps_its_place(tmp_path, inputs, measure):
    score = compose_groove(seed=0, family="rock", style=0, song=0)
    write(score, tmp_path / "R/song.mid")
    quarter = score.end // 4
    for track in score.tracks:
        onset = track.notes["onset"]
        kept = track.notes[(onset < quarter) | (onset >= 3 * quarter)]
        object.__setattr__(track, "notes", kept)
    write(score, tmp_path / "A/song.mid")
    style_over_time = measure("style_over_time")
    given = inputs(generated=str(tmp_path / "A"), references=str(tmp_path / "R"))
    rows = style_over_time(given, tmp_path)
    values = [row["value"] for row in rows if row["profile"] == "onset_duration"]
    assert [row["part"] for row in rows] == [*PARTS] * 4
    assert np.isnan(values).tolist() == [False, True, True, False]
