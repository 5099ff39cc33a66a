"""Prompts by name, and the originals of generated pieces."""

from musicgen.evaluation.references import prompt_files
from musicgen.midi import read

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
