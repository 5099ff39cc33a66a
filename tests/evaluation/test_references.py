"""Prompts by name, and the originals of generated pieces."""

from musicgen.data.prompt_files import prompt_files
from musicgen.evaluation.references import Manifest, Pair, read_pieces
from musicgen.midi import Score, Track, notes_from, read, write
from musicgen.plugins.scores import write_musicxml

TUNE = "X:{}\nM:4/4\nL:1/4\nK:C\n{}|\n\n"


def test_each_tune_of_a_book_is_a_prompt(tmp_path):
    book = tmp_path / "book.abc"
    book.write_text(TUNE.format(1, "CDEF") + TUNE.format(2, "GABc"))
    expected = {"book.abc/1": book / "1", "book.abc/2": book / "2"}
    assert prompt_files(str(book)) == prompt_files(str(tmp_path)) == expected
    second = prompt_files(str(book / "2"))
    assert second == {"book.abc/2": book / "2"}
    assert read(second["book.abc/2"]).notes["pitch"].tolist() == [67, 69, 71, 72]
    book.write_text(TUNE.format(1, "CDEF"))
    assert prompt_files(str(book)) == {"book.abc": book}


def test_an_original_continuation_is_as_long_as_the_new_one():
    """Both have their own ticks: a prompt of 4 beats, and 3 beats of music after it."""
    quarters = [(480 * beat, 480, 60 + beat, 64) for beat in range(12)]
    original = Score(480, [Track("Piano", notes=notes_from(quarters))])
    new = Score(24, [Track("Piano", notes=notes_from([(0, 24, 50, 64), (24, 48, 51, 64)]))])
    pair = Pair("new.mid", "old.mid", new, original, prompt_end=4 * 480)
    found = pair.original_continuation()
    assert found.notes["pitch"].tolist() == [64, 65, 66]
    assert found.notes["onset"].tolist() == [0, 480, 960]


def test_the_printed_score_of_a_piece_is_no_piece_of_its_own(tmp_path):
    score = Score(480, [Track("Flute", 73, notes=notes_from([(0, 480, 60, 64)]))])
    for name in ("a_0", "b_0"):
        write(score, tmp_path / f"{name}.mid")
        (tmp_path / f"{name}.musicxml").write_bytes(write_musicxml(score))
    listed = {"a_0.mid": {"file": "a_0.mid", "prompt": "a.mid"}}
    assert list(read_pieces(Manifest(tmp_path, listed))) == ["a_0.mid", "b_0.mid", "b_0.musicxml"]
