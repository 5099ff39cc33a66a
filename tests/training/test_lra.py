"""The Long Range Arena's models of the SPE paper have the published sizes."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hydra.utils import instantiate

from musicgen.models import parameter_count
from musicgen.package_data import CONF

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
def test_parameter_counts(config, name):
    for i, words in commands(name):
        cfg = config("train", *words)
        corpus = instantiate(cfg.data)
        model = instantiate(cfg.model, vocab_size=corpus.vocab_size, num_outputs=corpus.num_outputs)
        assert parameter_count(model) == PARAMETERS[name][i], words
        if model.position.max_length is not None:
            assert model.position.max_length == cfg.loader.length + 1


def test_published_settings(config):
    cfg = config("train", *commands("image")[3][1])
    assert cfg.model.attention.feature_map.num_features == 256
    assert (cfg.model.position.num_realizations, cfg.model.position.num_sines) == (32, 10)
    assert cfg.callbacks.redraw_features is None
