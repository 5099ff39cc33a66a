"""Experiments in conf/ have the published sizes, name themselves in their commands, and train."""

import math
import re
from itertools import product

import pytest
import torch
from hydra.utils import instantiate

from musicgen.cli import train
from musicgen.models import parameter_count
from musicgen.package_data import CONF
from tests.plugins.tasks.samples import SAMPLES
from tests.training.conftest import runner


def experiments(*folders: str) -> list[str]:
    """Return the names of experiments in folders of conf/experiment, without what they share."""
    paths = sorted(path for name in folders for path in (CONF / "experiment" / name).glob("*.yaml"))
    return [f"{p.parent.name}/{p.stem}" for p in paths if not p.stem.endswith("_base")]


MUSIC = [name for name in experiments("spe2021") if "/lra_" not in name]


@pytest.mark.parametrize("name", MUSIC)
def test_models_of_spe_have_the_published_parts(config, name):
    """Liutkus et al. 2021, §3 and supplement C; their code."""
    cfg = config("train", f"experiment={name}")
    num_tokens = len(instantiate(cfg.tokenizer, _convert_="all").vocabulary.names)
    assert num_tokens == (794 if "groove" in name else 360)
    # At a width that is quick to build.
    model = instantiate(cfg.model, vocab_size=num_tokens + 1, dim=32, ff_dim=8, num_layers=1)
    assert (model.dropout.p, model.layers[0].dropout.p) == (0.1, 0.1)
    assert cfg.scheduler.max_steps == (24 * 1841 if "groove" in name else cfg.trainer.max_steps)
    if "_spe" in name:
        assert (model.position.gate is None) == ("ungated" in name)
        assert model.position.num_realizations == 64


@pytest.mark.parametrize("name", MUSIC)
def test_a_paper_s_experiment_on_composed_music_says_so_first(config, tmp_path, name, capsys):
    small = ("model.dim=16", "model.ff_dim=16", "model.num_layers=1", "train=false")
    cfg = config("train", f"experiment={name}", *small)
    cfg.paths.output_dir = str(tmp_path)
    train.main(cfg)
    first = capsys.readouterr().err.splitlines()[0]
    told = r"trains on 240 composed pieces, not on the paper's data: unpack \S+ of https://\S+, and"
    found = re.fullmatch(rf"{told} add (data=\w+) (data.root=\S+)", first)
    assert found, first
    assert train.paper_data(config("train", f"experiment={name}", *found.groups())) is None


def test_composed_music_without_a_paper_is_not_mentioned(config):
    for name in ("demo", "race/favor", "race/softmax"):
        assert train.paper_data(config("train", f"experiment={name}")) is None


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_the_precision_of_products_is_a_setting(config, tmp_path, precision):
    before = torch.get_float32_matmul_precision()
    given = [] if precision == "highest" else [f"matmul_precision={precision}"]
    cfg = config("train", "model.dim=16", "model.num_heads=2", "train=false", *given)
    cfg.paths.output_dir = str(tmp_path)
    try:
        torch.set_float32_matmul_precision("medium")
        train.main(cfg)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


# Of experiments that are not music: the made sample, and methods of the paper, some on each task.
NOT_MUSIC = {
    "lrpe2023/wikitext103": ("language_modeling", "sinusoidal"),
    "lrpe2023/lra_text": ("text", "lrpe_permutation"),
    "lrpe2023/lra_listops": ("listops", "lrpe_orthogonal model.position.mixed=true"),
    "lrpe2023/lra_retrieval": ("retrieval", "lrpe_unitary model.position.angles=linear"),
    "lrpe2023/lra_pathfinder": ("pathfinder", "lrpe_orthogonal model.position.basis=identity"),
    "lrpe2023/lra_image": ("image", "rope"),
    "alfons2022/cifar10_1d": ("cifar10_1d", "transformer_xl"),
    "alfons2022/cifar10_2d": (
        "cifar10_2d",
        "siren span=gaussian model.span.training_length=[32,32] model.span.threshold=null",
    ),
}


def test_every_experiment_is_listed():
    assert sorted(NOT_MUSIC) == sorted(experiments("lrpe2023", "alfons2022"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "cifar10" in n else ()) for n in NOT_MUSIC]
)
def test_experiments_train_on_made_samples(config, tmp_path, name):
    task, method = NOT_MUSIC[name]
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_of_the_long_range_arena(config, name):
    text = (CONF / f"experiment/spe2021/lra_{name}.yaml").read_text(encoding="utf-8")
    (first,) = re.findall(r"^# python train\.py (.*) METHOD KERNEL$", text, re.M)
    methods = re.findall(r"^#   (position=.*)$", text, re.M)
    kernels = re.findall(r"^#   (attention=.*)$", text, re.M)
    assert (len(methods), len(kernels)) == (3, 2)
    for (method, expected), kernel in product(zip(methods, PARAMETERS[name], strict=True), kernels):
        cfg = config("train", *first.split(), *method.split(), *kernel.split())
        corpus = instantiate(cfg.data)
        with torch.device("meta"):
            model = instantiate(
                cfg.model, vocab_size=corpus.vocab_size, num_outputs=corpus.num_outputs
            )
        assert parameter_count(model) == expected, (method, kernel)
        if model.position.max_length is not None:
            assert model.position.max_length == cfg.loader.length + 1
