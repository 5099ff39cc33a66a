"""The command line: train, generate, evaluate, prepare."""

from omegaconf import DictConfig, OmegaConf


def _composed_kind(tokenizer: DictConfig | None) -> str:
    """Return which music is composed for a tokenizer: `groove` for the tracks of a band, or `pop`.

    conf/data/composer.yaml interpolates it as `${composed_kind:${tokenizer}}`.
    """
    is_band = tokenizer is not None and tokenizer._target_.endswith(".Groove2Groove")
    return "groove" if is_band else "pop"


OmegaConf.register_new_resolver("composed_kind", _composed_kind, replace=True)
