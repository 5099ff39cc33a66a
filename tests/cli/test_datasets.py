"""Data modules from configurations."""

from hydra.utils import instantiate

from musicgen.cli.build import build_data

LENGTH = 16


def build(cfg):
    return build_data(cfg, instantiate(cfg.tokenizer, _convert_="all"))


def test_the_composed_corpus_fits_the_tokenizer(config, tmp_path):
    settings = [f"paths.data_dir={tmp_path}", "data.num_pieces=6", "loader.batch_size=2"]
    settings.append(f"loader.length={LENGTH}")
    pop = build(config("train", *settings))
    groove = build(config("train", "tokenizer=groove2groove", *settings))
    assert (pop.encoded.corpus.kind, groove.encoded.corpus.kind) == ("pop", "groove")
    assert build(config("train", "data.kind=groove")).encoded.corpus.kind == "groove"
    assert config("train", "tokenizer._target_=musicgen.tokenization.Songs").data.kind == "songs"
    for data in (pop, groove):
        batch = next(iter(data.train_dataloader()))
        assert batch.tokens.shape == (2, LENGTH)
        assert [len(data.encoded.split(name)) for name in ("train", "val", "test")] == [4, 1, 1]
