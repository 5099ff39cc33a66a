"""Arguments as Hydra receives them."""

from __future__ import annotations

from musicgen.cli.runner.arguments import prepare_arguments


def test_flags_may_come_last():
    prepared = prepare_arguments(["data=midi_folder", "shard=1/2,2/2", "-m", "data.root=a b"])
    assert prepared == ["-m", "data=midi_folder", "shard=1/2,2/2", "data.root='a b'"]
    assert prepare_arguments(["x=1", "--cfg", "job"]) == ["--cfg", "job", "x=1"]


def test_null_selects_none_in_groups_that_have_it():
    assert prepare_arguments(["logger=null", "resume="]) == ["logger=none"]
    assert prepare_arguments(["~logger", "data=null"]) == ["logger=none", "data=null"]


def test_folders_are_quoted():
    for key in ("out", "data.cache_dir", "paths.data_dir", "paths.output_dir"):
        assert prepare_arguments([f"{key}=/a,b & c"]) == [f"{key}='/a,b & c'"]
