"""The command line: train, generate, evaluate, prepare."""

from omegaconf import DictConfig, OmegaConf


def _composed_kind(tokenizer: DictConfig | None) -> str:
    """Return which music conf/data/composer.yaml composes: `groove` for tokens of bands."""
    return "groove" if tokenizer and tokenizer._target_.endswith(".Groove2Groove") else "pop"


OmegaConf.register_new_resolver("composed_kind", _composed_kind, replace=True)
