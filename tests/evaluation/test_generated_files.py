"""What the report of generate.py shows besides the notes: chords over the prompt, and words."""

import json

import pytest

from musicgen.evaluation.generated_files import (
    explain_figures,
    file_names,
    report_title,
    write_manifest,
)
from musicgen.midi import Marker, Score, Track, io, notes_from, tracks, write
from musicgen.report import ReportPiece, render_report
from tests.generation.builders import music_model
from tests.tokenizers import frozen_tokenizers

TRIADS = [(60, 64, 67), (65, 69, 72), (55, 59, 62), (60, 64, 67)]
CHORDS = [
    (0, "C_M"),
    (960, "F_M"),
    (1920, "G_M"),
    (2880, "C_M"),
]  # of four bars of 240 ticks a beat


def piece(markers=()):
    rows = [(960 * bar, 960, p, 70) for bar, chord in enumerate(TRIADS) for p in chord]
    return Score(240, [Track("Piano", notes=notes_from(rows))], markers=[*markers])


@pytest.mark.parametrize(
    ("bars", "markers", "expected"),
    [
        (4, [], CHORDS),
        (2, [], CHORDS[:2]),
        (4, [Marker(0, "A_m_A")], [(0, "A_m_A")]),
    ],
)
def test_the_report_has_the_chords_that_the_model_read(tmp_path, bars, markers, expected):
    write(piece(markers), tmp_path / "song.mid")
    model = music_model(frozen_tokenizers()["songs"], "auto")
    (done,) = model.generate(tmp_path / "song.mid", prompt_bars=bars, bars=2, max_new_tokens=40)
    written = done.midi_file()
    (shown,) = write_manifest(tmp_path, {"song_0.mid": (done, written)}, {}, {}, [])
    assert shown.prompt_end == 960 * bars
    before = [(m.tick, m.text) for m in shown.score.markers if m.tick < shown.prompt_end]
    assert before == expected


def test_a_continuation_reads_its_prompt_once_and_what_it_wrote_once(tmp_path, monkeypatch):
    parsed = []

    def counted(parse):
        return lambda data: parsed.append(data) or parse(data)

    tracks.open_file.cache_clear()
    monkeypatch.setattr(io, "scan_file", counted(io.scan_file))
    monkeypatch.setattr(tracks, "_read_header", counted(tracks._read_header))  # of a file's events
    write(piece(), path := tmp_path / "song.mid")
    model = music_model(frozen_tokenizers()["songs"], "auto")
    for options in ({"prompt_bars": 2, "bars": 1}, {"rewrite": "2"}):
        parsed.clear()
        (done,) = model.generate(path, **options)
        written = done.midi_file()
        write_manifest(tmp_path, {"song_0.mid": (done, written)}, {}, {}, [])
        read = [] if "rewrite" in options else [path.read_bytes()]  # the events are known
        assert parsed == [*read, written.data]


def test_a_note_held_over_the_last_bar_line_adds_no_bar(tmp_path):
    model = music_model(frozen_tokenizers()["songs"], "auto")
    (done,) = model.generate(piece(), prompt_bars=2, bars=1, max_new_tokens=40)
    held = piece()
    held.tracks[0].notes["duration"][-1] += 5
    written = done.midi_file()._replace(score=held)
    (shown,) = write_manifest(tmp_path, {"song_0.mid": (done, written)}, {}, {}, [])
    (entry,) = json.loads((tmp_path / "generation.json").read_text())["pieces"]
    assert entry["bars"] == 4
    assert "4 bars, 12 notes" in render_report(title="t", pieces=[shown], metadata={})
    assert "4 bars" in repr(held)


def test_new_pieces_are_called_so(tmp_path):
    model = music_model(frozen_tokenizers()["songs"], "auto")
    pieces = model.generate(bars=1, num_samples=2, max_new_tokens=9)
    names = file_names([pieces[0].prompt], 2)
    assert [*names.values()] == ["new_piece_0.mid", "new_piece_1.mid"]
    files = {names[x.prompt, x.sample]: (x, x.midi_file()) for x in pieces}
    assert [x.title for x in write_manifest(tmp_path, files, {}, {}, [])] == [
        "new piece 1",
        "new piece 2",
    ]
    assert [report_title(pieces), report_title(pieces[:1])] == ["2 new pieces", "1 new piece"]


def test_a_gap_is_a_version_with_an_end(tmp_path):
    model = music_model(frozen_tokenizers()["songs"], "auto")
    found = {}
    for fill in ("2-3", "3-4", "piano"):
        (done,) = model.generate(piece(), fill=fill)
        files = {"song_0.mid": (done, done.midi_file())}
        (shown,) = write_manifest(tmp_path, files, {}, {}, [])
        found[fill] = shown.title, shown.prompt_end, shown.kept.gap_end
    assert found == {
        "2-3": ("prompt 0, version 1", 960, 2880),
        "3-4": ("prompt 0, version 1", 1920, 3840),
        "piano": ("prompt 0, version 1", 0, None),
    }


def test_the_report_says_what_its_figures_mean():
    measures = {"onset-duration similarity": 0.7, "time-pitch similarity": 0.4}
    shown = [ReportPiece("a", piece(), 0, None, {}, measures)]
    words = explain_figures(shown)
    assert "onset-duration similarity: rhythm (" in words
    assert "time-pitch similarity: melody and harmony (" in words
    assert "drum" not in words
    page = render_report(title="t", pieces=shown, metadata={}, explanation=f"{words}<b>")
    assert f'<p class="summary">{words}&lt;b&gt;</p>' in page
    assert explain_figures([ReportPiece("a", piece(), 0, None, {})]) == ""
