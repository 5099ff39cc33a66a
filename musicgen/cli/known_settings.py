"""Refuse settings that nothing reads, and name the most similar one."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.arguments import given_overrides, override_key
from musicgen.errors import UserError
from musicgen.package_data import CONF, choices

# Names that people know from other programs, and what serves their purpose here.
_ELSEWHERE = {
    "ckpt_path": "resume=RUN continues a run in its folder, init=RUN begins a new run from the "
    "weights of another"
}
_OBJECTS = ("callbacks", "logger")  # sections that hold any number of objects
_NO_SETTING = re.compile(r"Could not override '(\S+)'")  # Hydra's message
_NO_ARGUMENT = re.compile(r"got an unexpected keyword argument '(\w+)'")  # Python's


def check_known(cfg: DictConfig, config_name: str) -> None:
    """Raise `UserError` if an argument adds a setting (`+name=value`) that nothing reads.

    The arguments of a class are left to its constructor, see `unknown_setting`.
    """
    given = given_overrides()
    added = [override_key(override) for override in given if override.startswith("+")]
    uncertain = [
        key
        for key in added
        if not (_is_group(key) or key.startswith("hydra") or _is_of_object(cfg, key))
    ]
    if not uncertain:
        return
    known = _settings(config_name, given)
    for key in uncertain:
        # Other settings may take their values from a setting that nothing else reads.
        if key not in known and f"${{{key}}}" not in OmegaConf.to_yaml(cfg):
            raise UserError(no_such_setting(key, config_name, known=known))


def unknown_setting(error: BaseException) -> str | None:
    """Return the setting that Hydra or the constructor of a class does not know, if that is why."""
    if hydra_message := _NO_SETTING.search(str(error)):
        return hydra_message[1]
    message = _NO_ARGUMENT.search(str(error))
    if message is None:
        return None
    added = [override_key(each) for each in given_overrides() if each.startswith("+")]
    return next((key for key in added if key.rpartition(".")[2] == message[1]), None)


def no_such_setting(
    key: str, config_name: str, otherwise: str | None = None, known: Sequence[str] = ()
) -> str:
    """Return a line about an unknown setting: what to give instead, or the most similar one.

    Args:
        otherwise: the line for a setting of a section, such as `model.x`, without a similar one.
        known: the names of all settings; by default they are composed.
    """
    if config_name == "train" and key in _ELSEWHERE:
        return f"{key}: no such setting; {_ELSEWHERE[key]}"
    cutoff = 0.67 if "." in key else 0.6  # keys of one section have much in common
    known = known or _settings(config_name, sys.argv[1:])
    similar = get_close_matches(key, known, 1, cutoff)
    if similar and "._" not in similar[0] and not f"{key}.".startswith(f"{similar[0]}."):
        return f"{key}: no such setting; did you mean {similar[0]}?"
    if otherwise is not None and "." in key:
        return otherwise
    return f"{key}: no such setting; --help shows all"


def _is_group(key: str) -> bool:
    return bool(key) and (CONF / key.partition("@")[0]).is_dir()


def _is_of_object(cfg: DictConfig, key: str) -> bool:
    """Return whether a setting is an argument of a class, or a callback or logger itself."""
    parts = key.split(".")
    sections = [".".join(parts[:end]) for end in range(1, len(parts))]
    if parts[0] in _OBJECTS and len(parts) == 2:
        sections.append(key)
    found = (OmegaConf.select(cfg, section) for section in sections)
    return any(OmegaConf.is_dict(each) and "_target_" in each for each in found)


def _settings(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Return the names of a command's settings and groups, with the choices of the arguments."""
    groups = _groups(config_name)
    chosen = [
        each
        for each in arguments
        if override_key(each) in groups and each.partition("=")[2] in choices(override_key(each))
    ]
    # Within a job, Hydra has been initialized with the folders of the command line.
    in_job = GlobalHydra.instance().is_initialized()
    with nullcontext() if in_job else initialize_config_dir(str(CONF), version_base="1.3"):
        cfg: Any = compose(config_name, chosen, return_hydra_config=True)
    plain: Any = OmegaConf.to_container(cfg)
    return [*plain.pop("hydra")["runtime"]["choices"], *_keys(plain)]


def _groups(config_name: str) -> set[str]:
    """Return the groups of which a command has a choice."""
    entries = OmegaConf.load(CONF / f"{config_name}.yaml").defaults
    return {str(group) for entry in entries if OmegaConf.is_dict(entry) for group in entry}


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from (f"{key}.{each}" for each in _keys(value))
        else:
            yield key
