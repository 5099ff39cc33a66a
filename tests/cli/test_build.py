"""What a run takes from the checkpoint that it starts from."""

from omegaconf import OmegaConf

from musicgen.checkpoints import CheckpointContent
from musicgen.cli import build


def test_training_lengths_that_follow_the_loader_are_the_checkpoints(config, monkeypatch):
    given = ["position=siren", "attention=softmax", "span=gaussian"]
    old, cfg = (config("train", *given, f"loader.length={length}") for length in (32, 64))
    for each in (old, cfg):
        each.paths.output_dir = "."
    saved = OmegaConf.to_container(old, resolve=True)
    content = CheckpointContent(saved["model"], saved["tokenizer"], [], "", saved)
    monkeypatch.setattr(build, "given_overrides", lambda: [*given, "loader.length=64"])
    build.adopt_settings(cfg, content)
    lengths = cfg.loader.length, cfg.model.position.training_length, cfg.model.span.training_length
    assert lengths == (64, 32, 32)
