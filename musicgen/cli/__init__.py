"""The command line: train, generate, evaluate, prepare."""

from omegaconf import DictConfig, OmegaConf

from musicgen.run_folders import job_id, run_id


def _composed_kind(tokenizer: DictConfig | None) -> str:
    """Return the kind of music that conf/data/composer.yaml composes for a tokenizer."""
    if tokenizer is None:
        return "pop"
    kinds = {"Groove2Groove": "groove", "Songs": "songs"}
    class_name = tokenizer._target_.rpartition(".")[2]
    return kinds.get(class_name, "pop")


# Functions that conf/ calls.
OmegaConf.register_new_resolver("composed_kind", _composed_kind, replace=True)
OmegaConf.register_new_resolver("job_id", job_id, replace=True)
OmegaConf.register_new_resolver("run_id", run_id, replace=True)
