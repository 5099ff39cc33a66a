"""Record where a run comes from: its command, code, packages and machine."""

import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import musicgen

_CHECKOUT = Path(musicgen.__file__).parents[1]
_DISTRIBUTION = "musicgen-symbolic"


def provenance() -> dict[str, Any]:
    """Return the command of this process, its folder and host, and the versions of the code."""
    return {
        "command": shlex.join(sys.orig_argv),
        "directory": str(Path.cwd()),
        "host": platform.node(),
        "commit": commit(_CHECKOUT),
        "packages": package_versions(),
    }


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ from it; None without git."""
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None  # an installed package, or a folder without its history
    names = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    found = subprocess.run([*names, "--exclude=*"], capture_output=True, text=True)
    return found.stdout.strip() or None


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that training requires."""
    try:
        required = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        required = []
    needed = [each for each in required if "extra ==" not in each or 'extra == "train"' in each]
    names = [re.split(r"[^\w.-]", each)[0] for each in needed]
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
