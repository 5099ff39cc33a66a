"""Pieces of several folders on one page: python -m musicgen.report."""

import json

import pytest

from musicgen.midi import Score, Track, notes_from, write
from musicgen.report.__main__ import main, pieces_of


def folder_of(path, *files):
    score = Score(480, [Track("Piano", notes=notes_from([(0, 480, 60, 80), (1920, 480, 62, 80)]))])
    for file in files:
        write(score, path / file)
    rows = [{"file": file, "prompt end": 1920} for file in files]
    content = {"settings": {"temperature": 0.6}, "pieces": rows}
    (path / "generation.json").write_text(json.dumps(content))
    return path


def test_pieces_of_one_prompt_stand_together(tmp_path):
    folders = [
        folder_of(tmp_path / "a/trained", "x_0.mid", "y_0.mid"),
        folder_of(tmp_path / "b/shipped", "x_0.mid"),
    ]
    page = tmp_path / "a/index.html"
    main(page, folders)
    text = page.read_text()
    titles = ["x_0 (shipped)", "x_0 (trained)", "y_0 (trained)"]
    places = [text.index(f"{title}</a>") for title in titles]
    assert places == sorted(places)
    assert [piece.midi_file for piece in pieces_of(folders[0], page)] == [
        "trained/x_0.mid",
        "trained/y_0.mid",
    ]
    assert 'href="../b/shipped/x_0.mid"' in text


def test_a_folder_that_generate_did_not_write(tmp_path):
    with pytest.raises(SystemExit, match=r"no generation\.json"):
        main(tmp_path / "page.html", [tmp_path])
