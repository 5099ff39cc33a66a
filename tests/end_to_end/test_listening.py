"""What generate.py and evaluate.py write to listen to: the report, WAV files."""

import csv
import shutil
import wave

import pytest

from musicgen.composer import compose_pop
from musicgen.midi import write
from tests.end_to_end.command_line import call_here, succeed
from tests.midi.test_audio import soundfont_bytes


@pytest.fixture
def run(workplace, monkeypatch, capsys):
    """Run a command in the workplace."""
    for i in range(2):
        write(compose_pop(5, i), workplace / f"songs/song {i}.mid")
    return lambda script, *arguments: call_here(
        workplace, script, list(arguments), monkeypatch, capsys
    )


GENERATE = ("generate.py", "prompt=songs", "prompt_bars=1", "bars=1")


def test_report_says_what_was_continued_and_links_audio(run, workplace):
    (workplace / "s.sf2").write_bytes(soundfont_bytes())
    succeed(run(*GENERATE, "num_samples=2", "soundfont=s.sf2", "out=heard"))
    with wave.open(str(workplace / "heard/song 1_1.wav")) as file:
        assert file.getnframes() > file.getframerate()
    page = (workplace / "heard/report.html").read_text()
    assert "<h1>4 continuations of song 0 and song 1</h1>" in page
    assert ">song 1, continuation 2</h2>" in page
    assert 'href="song%201_1.wav"' in page
    assert "onset-duration similarity" in page


def test_copied_music_is_found_with_its_source(run, workplace):
    assert run(*GENERATE, "originality=true", "num_samples=2", "out=known").returncode == 0
    assert (
        "longest match with the training set (notes)"
        in (workplace / "known/report.html").read_text()
    )
    for song in (workplace / "data").rglob("pop_*.mid"):
        shutil.copy(song, (workplace / "known"))
    succeed(run("evaluate.py", "metrics=originality", "generated=known", "out=original"))
    rows = list(csv.DictReader((workplace / "original/originality_matches.csv").open()))
    (own, _) = csv.DictReader((workplace / "original/originality.csv").open())
    assert int(own["n"]) == len(rows) - 2  # two samples of each of two songs
    whole = [row for row in rows if row["num_piece_notes"] == row["num_notes"]]
    assert whole
    assert all((row["source"], row["transposition"]) == (row["piece"], "0") for row in whole)
