"""musicgen-prepare: a corpus is encoded without training."""

from musicgen.midi import dumps
from tests.data.builders import melody
from tests.end_to_end.command_line import assert_one_line, succeed

SCRIPT = "tests/end_to_end/prepare_script.py"


def test_duplicates_are_named_and_pieces_left_out_by_name(here, tmp_path):
    for i, split in enumerate(("train", "train", "val", "test")):
        (tmp_path / f"midi/{split}").mkdir(parents=True, exist_ok=True)
        score = melody(i if split != "test" else 0, 200)
        (tmp_path / f"midi/{split}/{i}.mid").write_bytes(dumps(score))
    corpus = ["data=midi_folder", "data.root=midi"]
    done = succeed(here(tmp_path, SCRIPT, *corpus))
    assert "duplicates: 1, 1 of them in another split" in done.stderr
    assert "train/0.mid = test/3.mid" in done.stderr
    (tmp_path / "exclude.txt").write_text("test/3.mid\n")
    corpus.append("data.exclude=exclude.txt")
    done = succeed(here(tmp_path, SCRIPT, *corpus))
    assert "duplicates: none" in done.stderr
    (tmp_path / "midi/test/3.mid").unlink()
    assert_one_line(here(tmp_path, SCRIPT, *corpus), " data.exclude=test/3.mid: expected the name")


def test_a_sweep_encodes_shards_that_are_joined(here, tmp_path):
    corpus = ["data.num_pieces=6", f"paths.data_dir={tmp_path}/data"]
    done = succeed(here(tmp_path, SCRIPT, "-m", "shard=1/2,2/2", *corpus))
    assert done.stderr.count("3 pieces read in") == 2
    done = succeed(here(tmp_path, SCRIPT, *corpus))
    assert " read in" not in done.stderr
    assert "ready: 6 pieces in " in done.stderr
    wrong = " shard=3/2: expected a part and their number, such as 3/64"
    assert_one_line(here(tmp_path, SCRIPT, "shard=3/2", *corpus), wrong)


def test_a_full_disk_is_one_line(here, workplace, small_disk):
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - 2**15))
    corpus = [f"paths.data_dir={small_disk}/data", "data.num_pieces=20"]
    full = "No space left on device; free some space"
    assert_one_line(here(workplace, SCRIPT, *corpus), full)
    arguments = ["bars=1", "num_samples=40", f"out={small_disk}/new"]
    assert_one_line(here(workplace, "generate.py", *arguments), full)
    (small_disk / "ballast").unlink()
    succeed(here(workplace, SCRIPT, *corpus))
