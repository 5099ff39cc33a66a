"""musicgen-prepare: a corpus is encoded in parts."""

from __future__ import annotations

from musicgen.midi import dumps
from tests.data.listed import melody
from tests.end_to_end.command_line import assert_one_line, succeed

SCRIPT = "tests/end_to_end/prepare_script.py"


def test_a_corpus_is_prepared_in_parts(here, tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.mid").write_bytes(dumps(melody(i)))
    settings = ["data=midi_folder", f"data.root={tmp_path}", "loader.limits.min_notes=3"]
    for number in (1, 2):
        done = succeed(here(tmp_path, SCRIPT, *settings, f"shard={number}/2"))
        assert ("ready: 12 pieces" in done.stderr) == (number == 2)
    (cache,) = tmp_path.rglob("index.npy")
    assert "12 pieces" in (cache.parent / "summary.txt").read_text()


def test_a_full_disk_is_one_line(here, workplace, small_disk):
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - 2**15))
    corpus = [f"paths.data_dir={small_disk}/data", "data.num_pieces=20"]
    full = "No space left on device; free some space"
    assert_one_line(here(workplace, SCRIPT, *corpus), full)
    arguments = ["bars=1", "num_samples=40", f"out={small_disk}/new"]
    assert_one_line(here(workplace, "generate.py", *arguments), full)
    (small_disk / "ballast").unlink()
    succeed(here(workplace, SCRIPT, *corpus))
