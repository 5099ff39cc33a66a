"""Experiments of papers that are not music have the published settings and sizes, and train."""

from __future__ import annotations

import math
import re
from itertools import product

import pytest
from hydra.utils import instantiate

from musicgen.models import parameter_count
from musicgen.package_data import CONF
from tests.data.non_music.samples import SAMPLES
from tests.training.conftest import runner

TASKS = {
    "lrpe2023/wikitext103": "language_modeling",
    "lrpe2023/bidirectional": "masked_language_modeling",
    "lrpe2023/lra_text": "text",
    "lrpe2023/lra_listops": "listops",
    "lrpe2023/lra_retrieval": "retrieval",
    "lrpe2023/lra_pathfinder": "pathfinder",
    "lrpe2023/lra_image": "image",
    "alfons2022/cifar10_1d": "cifar10_1d",
    "alfons2022/cifar10_2d": "cifar10_2d",
}
EXAMPLES = {  # steps are epochs of so many training examples: Qin et al. 2023, table 9
    "lrpe2023/lra_text": (32, 25_000),
    "lrpe2023/lra_listops": (40, 96_000),
    "lrpe2023/lra_retrieval": (20, 147_086),
    "lrpe2023/lra_pathfinder": (200, 160_000),
    "lrpe2023/lra_image": (200, 45_000),
    "alfons2022/cifar10_1d": (80, 40_000),  # Alfons 2022, table 4
    "alfons2022/cifar10_2d": (80, 40_000),
}


def test_every_experiment_is_listed():
    names = {
        f"{paper}/{path.stem}"
        for paper in ("lrpe2023", "alfons2022")
        for path in (CONF / "experiment" / paper).glob("*.yaml")
        if not path.stem.endswith("_base")
    }
    assert names == TASKS.keys()


@pytest.mark.parametrize("name", TASKS)
def test_steps_are_the_published_epochs_and_commands_name_the_experiment(config, name):
    cfg = config("train", f"experiment={name}")
    first = (CONF / f"experiment/{name}.yaml").read_text().splitlines()[1]
    assert f"experiment={name} " in first
    if name in EXAMPLES:
        epochs, examples = EXAMPLES[name]
        batch = cfg.loader.batch_size * cfg.trainer.accumulate_grad_batches
        assert cfg.trainer.max_steps == epochs * math.ceil(examples / batch)


# Every method of the papers, some on each task.
METHODS = {
    "lrpe2023/wikitext103": ["sinusoidal", "none", "rope", "lrpe_unitary"],
    "lrpe2023/bidirectional": ["sine_spe", "permute"],
    "lrpe2023/lra_text": ["lrpe_permutation"],
    "lrpe2023/lra_listops": ["lrpe_orthogonal model.position.mixed=true"],
    "lrpe2023/lra_retrieval": ["lrpe_unitary model.position.angles=linear"],
    "lrpe2023/lra_pathfinder": ["lrpe_orthogonal model.position.basis=identity"],
    "lrpe2023/lra_image": ["rope"],
    "alfons2022/cifar10_1d": ["transformer_xl", "siren", "siren span=gaussian"],
    "alfons2022/cifar10_2d": [
        "siren span=gaussian model.span.training_length=[32,32] model.span.threshold=null"
    ],
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(name, method, marks=pytest.mark.slow if "cifar10" in name else ())
        for name, found in METHODS.items()
        for method in found
    ],
)
def test_experiments_train_on_made_samples(config, tmp_path, name, method):
    task = TASKS[name]
    overrides = [f"experiment={name}", *f"position={method}".split(), "model.num_layers=1"]
    overrides += ["model.ff_dim=16", "loader.batch_size=2", "trainer.max_steps=1", "test=true"]
    overrides += ["trainer.val_check_interval=1", "+trainer.limit_val_batches=1"]
    overrides += ["+trainer.limit_test_batches=1", "trainer.log_every_n_steps=1"]
    if task == "listops":
        overrides += ["data.num_train=40", "data.num_val=8", "data.num_test=8"]
        overrides += ["data.min_length=16", "loader.length=40"]
    else:
        overrides.append(f"data.root={SAMPLES[task](tmp_path / 'sample')}")
    if "modeling" in task:
        overrides += ["loader.length=8", "model.dim=32", "model.num_heads=4"]
    if task in ("image", "cifar10_1d", "cifar10_2d"):
        overrides.append("data.num_val=4")
    if task in ("text", "retrieval"):
        overrides.append("loader.length=40")
    rows = runner(config, tmp_path, base=())("run", *overrides)
    metrics = {key: float(value) for row in rows.values() for key, value in row.items()}
    assert math.isfinite(metrics["train/loss"])
    for stage in ("val", "test"):
        if "modeling" in task:
            perplexity = math.exp(metrics[f"{stage}/loss"])
            assert metrics[f"{stage}/perplexity"] == pytest.approx(perplexity, rel=1e-5)
        else:
            assert 0 <= metrics[f"{stage}/accuracy"] <= 1
    assert not any("note" in name for name in metrics)


# Liutkus et al. 2021, supplement, table 3: APE, sineSPE, convSPE.
PARAMETERS = {
    "listops": (19_982_858, 20_078_090, 20_117_002),
    "text": (3_486_722, 3_518_466, 3_553_282),
    "retrieval": (1_087_618, 1_103_490, 1_120_898),
    "image": (248_458, 119_242, 133_706),
}


def commands(name):
    """Return the words of each command at the beginning of an experiment's file, by method."""
    text = (CONF / f"experiment/spe2021/lra_{name}.yaml").read_text(encoding="utf-8")
    (first,) = re.findall(r"^# python train\.py (.*) METHOD KERNEL$", text, re.M)
    methods = re.findall(r"^#   (position=.*)$", text, re.M)
    kernels = re.findall(r"^#   (attention=.*)$", text, re.M)
    assert (len(methods), len(kernels)) == (3, 2)
    return [
        (i, [*first.split(), *method.split(), *kernel.split()])
        for (i, method), kernel in product(enumerate(methods), kernels)
    ]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_of_the_long_range_arena(config, name):
    for i, words in commands(name):
        cfg = config("train", *words)
        corpus = instantiate(cfg.data)
        model = instantiate(cfg.model, vocab_size=corpus.vocab_size, num_outputs=corpus.num_outputs)
        assert parameter_count(model) == PARAMETERS[name][i], words
        if model.position.max_length is not None:
            assert model.position.max_length == cfg.loader.length + 1


def test_settings_of_the_long_range_arena(config):
    cfg = config("train", *commands("image")[3][1])
    assert cfg.model.attention.feature_map.num_features == 256
    assert (cfg.model.position.num_realizations, cfg.model.position.num_sines) == (32, 10)
    assert cfg.callbacks.redraw_features is None
