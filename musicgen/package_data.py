"""Locate the configuration files, the frozen vocabularies and the models of the package."""

from __future__ import annotations

from pathlib import Path


def _find(packaged: str, in_checkout: str) -> Path:
    """Return a folder of the installed package, or of the checkout if nothing was packaged."""
    package = Path(__file__).parent
    folder = package / packaged
    return folder if folder.is_dir() else package.parent / in_checkout


# setup.py copies the checkout's folders to these names in the package.
CONF = _find("conf", "conf")
VOCABULARIES = _find("vocabularies", "tokenizers")  # NAME/vocab.json
PRETRAINED = Path(__file__).parent / "pretrained"  # NAME/config.json
