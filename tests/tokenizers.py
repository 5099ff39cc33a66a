"""The tokenizers of `conf/tokenizer`, whose vocabularies never change."""

from functools import cache

from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.package_data import CONF, choices
from musicgen.tokenization import Tokenizer


@cache
def frozen_tokenizers() -> dict[str, Tokenizer]:
    """Return them by name."""
    files = {name: CONF / "tokenizer" / f"{name}.yaml" for name in choices("tokenizer")}
    return {name: instantiate(OmegaConf.load(path)) for name, path in files.items()}
