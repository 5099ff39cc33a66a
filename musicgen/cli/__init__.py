"""The command line: train, generate, evaluate, prepare."""

from omegaconf import DictConfig, OmegaConf

from musicgen.run_folders import job_id, run_id


def _composed_kind(tokenizer: DictConfig | None) -> str:
    """Return the kind of music that conf/data/composer.yaml composes for a tokenizer."""
    class_name = "" if tokenizer is None else tokenizer._target_.rpartition(".")[2]
    return {"Groove2Groove": "groove", "Songs": "songs"}.get(class_name, "pop")


# Functions that conf/ calls.
for name, function in (("composed_kind", _composed_kind), ("job_id", job_id), ("run_id", run_id)):
    OmegaConf.register_new_resolver(name, function, replace=True)
