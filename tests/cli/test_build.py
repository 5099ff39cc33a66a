"""Data modules from configurations, and what a run takes from the checkpoint that it starts from."""

import pytest
from omegaconf import OmegaConf

from musicgen.checkpoints import CheckpointContent
from musicgen.cli.build import adopt_settings, build_music, keep_batch_size
from musicgen.errors import ParameterError, UserError

LENGTH = 16


def test_the_composed_corpus_fits_the_tokenizer(config, tmp_path):
    settings = [f"paths.data_dir={tmp_path}", "data.num_pieces=6", "loader.batch_size=2"]
    settings.append(f"loader.length={LENGTH}")
    *_, pop = build_music(config("train", *settings))
    *_, groove = build_music(config("train", "tokenizer=groove2groove", *settings))
    assert (pop.encoded.corpus.kind, groove.encoded.corpus.kind) == ("pop", "groove")
    assert build_music(config("train", "data.kind=groove"))[2].encoded.corpus.kind == "groove"
    assert config("train", "tokenizer._target_=musicgen.tokenization.Songs").data.kind == "songs"
    for data in (pop, groove):
        assert next(iter(data.train_dataloader())).tokens.shape == (2, LENGTH)
        assert [len(data.encoded.split(name)) for name in ("train", "val", "test")] == [4, 1, 1]


def test_training_lengths_that_follow_the_loader_are_the_checkpoints(config, monkeypatch):
    given = ["position=siren", "attention=softmax", "span=gaussian"]
    old, cfg = (config("train", *given, f"loader.length={length}") for length in (32, 64))
    plain = config("train")
    for each in (old, cfg, plain):
        each.paths.output_dir = "."
    saved = OmegaConf.to_container(old, resolve=True)
    content = CheckpointContent(saved["model"], saved["tokenizer"], [], "", saved)
    monkeypatch.setattr("musicgen.cli.build.given_overrides", lambda: [*given, "loader.length=64"])
    adopt_settings(cfg, content)
    lengths = cfg.loader.length, cfg.model.position.training_length, cfg.model.span.training_length
    assert lengths == (64, 32, 32)
    monkeypatch.setattr("musicgen.cli.build.given_overrides", list)
    adopt_settings(plain, content)  # of another encoding, which has no training length
    assert (plain.loader.length, plain.model.position.training_length) == (32, 32)


def test_a_run_records_the_names_in_files_of_pieces_to_leave_out(config, tmp_path):
    (tmp_path / "names").write_text("b.mid\na, b.mid\r\n")
    names = ["a, b.mid", "b.mid"]
    cfg = config("train", "data=midi_folder", "data.root=x", f"data.exclude={tmp_path}/names")
    assert build_music(cfg)[2].encoded.corpus.excluded == {*names}
    assert cfg.data.exclude == names
    inner = config("train", "data=songbook", f"data.corpora.chopin.exclude={tmp_path}/names")
    build_music(inner)
    assert inner.data.corpora.chopin.exclude == names
    with pytest.raises(ParameterError, match=r"data\.exclude=no such: expected a file"):
        build_music(config("train", "data=midi_folder", "data.root=x", "data.exclude=no such"))


@pytest.mark.parametrize(
    ("trainer", "given", "size"),
    [
        ({"devices": 2}, 4, 8),
        ({"devices": 2, "num_nodes": 3}, 4, 24),
        ({"devices": 1}, 4, 4),
        ({"devices": "auto"}, 4, 12),
        ({"devices": 2}, 6, 6),  # on the command line
        ({"devices": "x", "num_nodes": None}, 4, 4),
        ({}, 4, 4),
    ],
    ids=str,
)
def test_a_run_of_the_first_version_keeps_the_size_of_its_batches(
    config, trainer, given, size, monkeypatch
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    cfg = config("train", f"loader.batch_size={given}")
    saved = {"trainer": trainer, "loader": {"batch_size": 4}}
    notes = keep_batch_size(cfg, saved)
    assert cfg.loader.batch_size == size
    assert bool(notes) == (size != given)
    cfg.loader.batch_size = given
    assert keep_batch_size(cfg, {**saved, "matmul_precision": "highest"}) == []
    assert cfg.loader.batch_size == given


@pytest.mark.parametrize(
    "hostile",
    [{"loader": {"length": "${oc.env:HOME}"}}, {"init": "${oc.env:HOME}"}],
    ids=str,
)
def test_nothing_in_a_checkpoint_is_interpolated(config, hostile):
    cfg = config("train")
    saved = OmegaConf.to_container(cfg)
    content = CheckpointContent({}, {}, [], "", {"sampling": saved["sampling"], **hostile})
    with pytest.raises(UserError, match=r"holds an interpolation \(\$\{oc.env:HOME\}\)"):
        adopt_settings(cfg, content)
