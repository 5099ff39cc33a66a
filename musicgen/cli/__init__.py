"""The command line: train, generate, evaluate, prepare."""

from omegaconf import DictConfig, OmegaConf


def _composed_kind(tokenizer: DictConfig | None) -> str:
    """Return which music conf/data/composer.yaml composes for the class of a tokenizer."""
    kinds = {"Groove2Groove": "groove", "Songs": "songs"}
    return kinds.get(tokenizer._target_.rpartition(".")[2], "pop") if tokenizer else "pop"


OmegaConf.register_new_resolver("composed_kind", _composed_kind, replace=True)
