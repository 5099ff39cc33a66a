"""Locate the configuration files and the models of the package."""

from pathlib import Path

_PACKAGE = Path(__file__).parent

# A wheel has a copy of the configuration in the package, see setup.py; a checkout next to it.
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if path.is_dir())
PRETRAINED = _PACKAGE / "pretrained"  # NAME/config.json
DEFAULT_MODEL = "songs-small"  # songs and piano music
BAND_MODEL = "groove-small"
CHORALE_MODEL = "bach-chorales"
EXAMPLES = _PACKAGE / "examples"  # pieces of eight bars in 4/4, 3/4 and 6/8, composed by musicgen


def own_or_example(path: str | Path) -> Path:
    """Return a path; `examples`, or the name of one, means the package's unless it exists here."""
    if Path(path).exists():
        return Path(path)
    found = {each.name: each for each in (EXAMPLES, *EXAMPLES.iterdir())}.get(str(path))
    return Path(path) if found is None else found


def choices(group: str) -> list[str]:
    """Return the choices of a configuration group, such as `position`."""
    files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in files)
