"""Tasks that are not music resume and learn like music; their objectives."""

from functools import partial

import pytest
import torch
from hydra.errors import InstantiationException
from torch.nn import functional as F

from musicgen import load
from musicgen.attention import SoftmaxAttention
from musicgen.batches import Batch
from musicgen.errors import ParameterError, UserError
from musicgen.plugins.tasks import Classification, ClassificationHead
from musicgen.position import RoPE
from musicgen.training.module import TrainingModule
from musicgen.training.tasks import LanguageModeling
from tests.training.conftest import runner, saved, small_transformer

TINY = (
    *("model.dim=16", "model.num_layers=1", "model.num_heads=2", "model.ff_dim=16"),
    *("loader.batch_size=2", "trainer.max_steps=3", "trainer.val_check_interval=2"),
    *("trainer.log_every_n_steps=1", "+trainer.limit_val_batches=2"),
)
LISTOPS = ("task=listops", "data.num_train=40", "data.num_val=8", "data.num_test=8")


@pytest.fixture
def run(config, tmp_path):
    """Train in a folder `name` of the test's own; return the metrics by step."""
    return runner(config, tmp_path, TINY)


def test_listops_resumes_and_generates_no_music(run, tmp_path):
    settings, last = (*LISTOPS, "loader.length=40"), tmp_path / "part/checkpoints/last.ckpt"
    whole = run("whole", *settings, "trainer.max_steps=4")
    run("part", *settings, "trainer.max_steps=2")
    rest = run("part", *settings, "trainer.max_steps=4", resume=last)
    assert rest[3]["train/loss"] == whole[3]["train/loss"]
    with pytest.raises(UserError, match="a model of ListOps, not of music"):
        load(tmp_path / "whole/checkpoints/last.ckpt")


def test_batch_norm_counts_the_batches_of_training_alone(run, tmp_path):
    run("run", *LISTOPS, "model.norm=batch")
    state = saved(tmp_path / "run")["state_dict"]
    assert state["model.layers.0.ff_norm.norm.num_batches_tracked"] == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=listops", "tokenizer=remi"], "ListOps is not music; choose its task"),
        (["task=listops", "data=midi_folder", "data.root=."], "MidiFolder is music"),
        (["task=language_modeling", "data.root=."], "not found; download wikitext"),
        (
            [
                *("task=pathfinder", "data.side=4", "loader.length=16", "position=rope"),
                *("attention=softmax", "span=gaussian", "model.span.training_length=[4,4]"),
            ],
            "position=rope would read the row alone",
        ),
        (["task=listops", "model.position.coordinates=2"], "coordinates.*expected index"),
    ],
)
def test_wrong_combinations_are_refused(run, overrides, message):
    with pytest.raises((UserError, InstantiationException), match=message):
        run("run", *overrides)


model = partial(
    small_transformer, 12, position=RoPE, attention=SoftmaxAttention, num_layers=1, init_std=0.3
)


@torch.no_grad()
def test_accuracy_counts_correct_classes():
    classifier = model(causal=False, head=ClassificationHead, num_outputs=4)
    tokens = torch.randint(12, (6, 5))
    batch = Batch(tokens, torch.tensor([0, 1, 2, 3, 0, 1]), torch.arange(5)[None, :, None])
    losses, sums = Classification().evaluate(classifier, batch, None)
    logits = classifier(tokens)
    assert torch.allclose(losses, F.cross_entropy(logits, batch.targets, reduction="none"))
    assert sums["accuracy"] == (logits.argmax(1) == batch.targets).sum()
    assert torch.allclose(Classification().loss(classifier, batch, None), losses.mean())


def test_language_models_are_causal():
    with pytest.raises(ParameterError, match=r"model\.causal=False: expected true"):
        TrainingModule(
            model(causal=False), LanguageModeling(), partial(torch.optim.Adam), None, None, 0
        )
