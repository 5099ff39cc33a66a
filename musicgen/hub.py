"""Models on the Hugging Face Hub, through huggingface_hub: pip install musicgen-symbolic[hub]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from musicgen.errors import UserError

PREFIX = "hf://"  # of a repository of the Hub, as in hf://user/name
_FILES = ["config.json", "tokenizer.json", "model.safetensors"]


def download(name: str) -> Path:
    """Return the local folder of the model `hf://USER/NAME`, or `hf://USER/NAME@REVISION`.

    Raises:
        UserError: huggingface_hub is not installed, or the model cannot be had.
    """
    repo_id, _, revision = name.removeprefix(PREFIX).partition("@")
    hub = _library()
    try:
        options = {"revision": revision or None, "allow_patterns": _FILES}
        return Path(hub.snapshot_download(repo_id, **options))
    except Exception as error:  # its own, the network's and the disk's have no common class
        raise UserError(f"{name}: {_first_line(error)}") from None


def upload(folder: Path, repo_id: str, *, private: bool, message: str) -> str:
    """Upload the files of a folder to a repository, made if it is missing; return its address.

    Raises:
        UserError: huggingface_hub is not installed, or the Hub refuses.
    """
    hub = _library()
    try:
        hub.create_repo(repo_id, private=private, exist_ok=True)
        return str(hub.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))
    except Exception as error:
        raise UserError(f"{repo_id}: {_first_line(error)}") from None


def _library() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise UserError(
            "the Hugging Face Hub needs huggingface_hub; run: pip install musicgen-symbolic[hub]"
        ) from None
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
