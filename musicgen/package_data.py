"""Locate the configuration files and the models of the package."""

from pathlib import Path

_PACKAGE = Path(__file__).parent

# A wheel has a copy of the configuration in the package, see setup.py; a checkout beside it.
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if path.is_dir())
PRETRAINED = _PACKAGE / "pretrained"  # NAME/config.json


def choices(group: str) -> list[str]:
    """Return the choices of a configuration group, such as `position`."""
    files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in files)
