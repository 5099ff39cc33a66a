"""musicgen-prepare: a corpus is encoded in parts."""

from __future__ import annotations

from musicgen.midi import dumps
from tests.data.listed import melody
from tests.end_to_end.command_line import succeed

SCRIPT = "tests/end_to_end/prepare_script.py"


def test_a_corpus_is_prepared_in_parts(here, tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.mid").write_bytes(dumps(melody(i)))
    settings = ["data=midi_folder", f"data.root={tmp_path}", "loader.limits.min_notes=3"]
    for number in (1, 2):
        done = succeed(here(tmp_path, SCRIPT, *settings, f"shard={number}/2"))
        assert ("ready: 12 pieces" in done.stderr) == (number == 2)
    (cache,) = tmp_path.rglob("index.json")
    assert "12 pieces" in (cache.parent / "summary.txt").read_text()
