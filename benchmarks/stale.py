"""List the results that are older than the code that they measure: python -m benchmarks.stale"""

import json
import subprocess
from pathlib import Path

from benchmarks.measure import RESULTS, ROOT

_MODEL = ("musicgen/attention", "musicgen/models", "musicgen/position")
_MUSIC = ("musicgen/midi", "musicgen/tokenization")
_CONTINUATIONS = ("musicgen/generation", "musicgen/pretrained", *_MODEL, *_MUSIC)
MEASURED = {
    "beats": ("musicgen/plugins/beats",),
    "causal_product": ("musicgen/attention",),
    "copy_head": _MODEL,
    "decoding": (*_MODEL, "musicgen/generation"),
    "decoding_engines": (*_MODEL, "musicgen/generation", "musicgen/export"),
    "endings": _CONTINUATIONS,
    "exact_spe": _MODEL,
    "gaps": _CONTINUATIONS,
    "kinds": _CONTINUATIONS,
    "loader": ("musicgen/data", "musicgen/tokenization"),
    "lrpe": _MODEL,
    "muon": ("musicgen/training/optimizers.py",),
    "performance": ("musicgen/generation", "musicgen/midi"),
    "performer_pytorch": _MODEL,
    "preparation": (*_MUSIC, "musicgen/data"),
    "product_forms": ("musicgen/attention",),
    "quartets": _CONTINUATIONS,
    "songs": _CONTINUATIONS,
    "span": _MODEL,
    "step_bytes": _MODEL,
    "style": (*_MODEL, "musicgen/pretrained"),
    "ten_endings": _CONTINUATIONS,
    "training_step": _MODEL,
}
"""The files that a result of benchmarks/results/ measures."""


def main() -> None:
    for name, paths in MEASURED.items():
        if commits := changes(ROOT, RESULTS / f"{name}.json", paths):
            print(f"{name}: older than {len(commits)} commits of {', '.join(paths)}")


def changes(repository: Path, result: Path, paths: tuple[str, ...]) -> list[str]:
    """Return the commits that changed the measured files after a result.

    A result names the commit of its code; of one that does not, it is the one that added it.
    """
    commit = json.loads(result.read_text(encoding="utf-8")).get("commit")
    commit = commit or git(repository, "log", "-1", "--format=%H", "--", str(result)).strip()
    return git(repository, "log", "--format=%h", f"{commit}..HEAD", "--", *paths).splitlines()


def git(repository: Path, *arguments: str) -> str:
    """Return the output of git; raise `CalledProcessError` outside of a repository."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
