"""A setting of a corpus or loader has one default, in its file in conf."""

import inspect

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from musicgen.batches import StreamDataModule
from musicgen.data.preparation import EncodedCorpus
from musicgen.package_data import CONF

FILES = {
    path.relative_to(CONF).as_posix(): settings
    for group in ("data", "loader")
    for path in sorted((CONF / group).glob("*.yaml"))
    if "_target_" in (settings := OmegaConf.load(path))  # others extend one of these
}


@pytest.mark.parametrize("file", FILES)
def test_classes_repeat_no_default(file):
    parameters = dict(inspect.signature(get_class(FILES[file]._target_)).parameters)
    if file.startswith("loader"):  # some are passed on
        for passed_on in (StreamDataModule, EncodedCorpus):
            parameters = {**inspect.signature(passed_on).parameters, **parameters}
    for name in FILES[file].keys() - {"_target_"}:
        assert parameters[name].default is inspect.Parameter.empty, name
