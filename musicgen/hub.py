"""Models on the Hugging Face Hub, through huggingface_hub: pip install musicgen-symbolic[hub]."""

from __future__ import annotations

from pathlib import Path

from musicgen.errors import UserError

PREFIX = "hf://"  # of a repository of the Hub, as in hf://user/name
_FILES = ["config.json", "tokenizer.json", "model.safetensors"]


def download(name: str) -> Path:
    """Return the local folder of the model `hf://USER/NAME`, or `hf://USER/NAME@REVISION`.

    Raises:
        UserError: huggingface_hub is not installed, or the model cannot be had.
    """
    repo_id, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(
            "the Hugging Face Hub needs huggingface_hub; run: pip install musicgen-symbolic[hub]"
        ) from None
    try:
        return Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=_FILES))
    except Exception as error:  # its own, the network's and the disk's have no common class
        lines = (line.strip() for line in str(error).splitlines() if line.strip())
        raise UserError(f"{name}: {next(lines, repr(error))}") from None
