"""Names that a user may have meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.runner.arguments import is_override
from musicgen.cli.runner.error_messages import UNKNOWN_KEY, one_line
from musicgen.cli.runner.newcomers import cure
from musicgen.errors import UserError
from musicgen.package_data import CONF

_PERFORMER = ("model", "performer")
_PLUGINS = {  # of Hydra, and the extras that install them
    "hydra/sweeper/optuna": "optuna",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}


def raise_with_suggestions(
    error: ConfigCompositionException, config_name: str, arguments: Sequence[str]
) -> None:
    """Raise `UserError` with the existing names closest to an unknown one, if there are any."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        if extra := _PLUGINS.get(error.missing_cfg_file):
            raise UserError(
                f"{error.missing_cfg_file}: not installed; run: "
                f"pip install 'musicgen-symbolic[{extra}]'"
            )
        group, _, name = error.missing_cfg_file.partition("/")
        files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
        options = sorted(path.with_suffix("").as_posix() for path in files)
        if name and options:
            hint = "; attention=favor is the Performer" if (group, name) == _PERFORMER else ""
            raise UserError(f"{group}={name}: expected one of {', '.join(options)}{hint}")
    unknown = UNKNOWN_KEY.search(str(error))
    if unknown and (meant := cure(config_name, unknown[1], arguments)):
        raise UserError(f"{unknown[1]}: no such setting; give {meant}")
    near = _nearest(unknown[1], config_name, arguments) if unknown else []
    if near:
        raise UserError(f"{one_line(error)}; did you mean {' or '.join(near)}?")


def _nearest(name: str, config_name: str, arguments: Sequence[str]) -> list[str]:
    """Return the keys below `name`, else those with its last part, else the most similar one."""
    others = [a for a in arguments if is_override(a) and a.partition("=")[0] != name]
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            keys = list(_keys(hydra.compose(config_name, others)))
    except HydraException:  # another error, or a sweep
        return []
    defaults = OmegaConf.load(CONF / f"{config_name}.yaml").defaults
    keys += [group for entry in defaults for group in entry]
    last = name.rpartition(".")[2]
    below = [key for key in keys if key.startswith(f"{name}.")]
    same = [key for key in keys if key.rpartition(".")[2] == last]
    return below or same or difflib.get_close_matches(name, keys, 1)


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys of a configuration as on the command line."""
    for key in config:
        yield f"{prefix}{key}"
        value = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none():
            yield from _keys(value, f"{prefix}{key}.")
