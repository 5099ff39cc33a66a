"""Start training from a checkpoint: resume its run, or begin a new one from its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from torch import Tensor, nn

from musicgen.checkpoints.content import CheckpointContent
from musicgen.checkpoints.reading import load_weights, state_weights
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.models.layer import LayerSettings
from musicgen.text import pluralize
from musicgen.tokenization.vocabulary import Vocabulary

_MAY_CHANGE = {"dropout", "backend"}  # settings of a model that do not concern its weights
# Settings of an optimizer that do not concern what it keeps of past steps.
_MAY_CHANGE_OPTIMIZER = {"lr", "betas", "eps", "weight_decay", "momentum", "adamw_lr"}
_KEPT = ("optimizer", "scheduler")  # their classes; all else of these sections may change:
_MAY_DIFFER = (*_KEPT, "seed", "data", "loader", "trainer", "callbacks", "task")
_NOT_SHOWN = re.compile(r"(path|dir|folder)$")  # which change by themselves if a run is moved
# Parameters with one row for each token.
_TOKEN_ROWS = ("embedding.weight", "head.weight", "head.bias")
_NUM_TOKENS_NAMED = 4
_COPY_HEAD = "copy_head."


def load_for_resume(
    checkpoint: Mapping[str, Any], content: CheckpointContent, model: nn.Module
) -> list[str]:
    """Load a checkpoint's weights into the model of a run that resumes from it.

    Returns:
        The settings that are new, such as `optimizer.lr=0.001 (was 0.002)`.

    Raises:
        UserError: the model, tokenizer or kind of optimizer differs: names the settings.
    """
    saved = CheckpointContent.from_plain(checkpoint)
    content.check_same_vocabulary(saved)
    if differing := _different_model(saved, content):
        raise UserError(
            f"the run has {differing}; a resumed run keeps its model and tokenizer, and may change "
            "trainer, data, optimizer, schedule, logger and callbacks: give the run's settings, "
            "leave yours out, or begin a new run without resume"
        )
    changed = []
    for section in _MAY_DIFFER:
        here, there = (_settings(c.config.get(section), section) for c in (content, saved))
        for name in [*here, *(there.keys() - here.keys())]:
            new, old = here.get(name, "null"), there.get(name, "null")
            group, _, key = name.rpartition(".")
            hidden = group not in here.keys() & there.keys() and name != section
            if new == old or hidden or _NOT_SHOWN.search(name):
                continue
            if name in _KEPT or (section == "optimizer" and key not in _MAY_CHANGE_OPTIMIZER):
                raise UserError(
                    f"the run has {name}={old} (not {new}); a resumed run keeps it, and may change "
                    f"{', '.join(sorted(_MAY_CHANGE_OPTIMIZER))} and the settings of its schedule: "
                    f"set {name}= to the run's, or begin a new run from these weights with init="
                )
            changed.append(f"{name}={new} (was {old})")
    load_weights(model, state_weights(checkpoint))
    return changed


def load_initial(
    checkpoint: dict[str, Any], content: CheckpointContent, model: nn.Module
) -> str | None:
    """Load a checkpoint's weights into the model of a new run.

    If the vocabularies differ, the weights of each token are taken over by its name; those of new
    tokens stay as they were initialised, and so does a copy head that the checkpoint lacks, or has
    with other settings.

    Returns:
        What is new, and which tokens are left out, in one line; None if all weights are loaded.

    Raises:
        UserError: the model differs: names the settings.
    """
    saved = CheckpointContent.from_plain(checkpoint)
    if differing := _different_model(saved, content, "copy"):
        raise UserError(
            f"its model has {differing}; weights fit only the model that they were trained in: "
            "leave these settings out, or train without init"
        )
    weights, notes = dict(state_weights(checkpoint)), []
    own, theirs = (
        {n: t for n, t in w.items() if n.startswith(_COPY_HEAD)}
        for w in (model.state_dict(), weights)
    )
    new_head = _shapes(own) != _shapes(theirs)
    if new_head:
        notes.append("a new copy head" if own else "its copy head is left out")
        weights = {n: t for n, t in weights.items() if n not in theirs} | own
    if saved.vocabulary_hash != content.vocabulary_hash:
        old, new = saved.vocabulary, content.vocabulary
        weights = _with_rows_of(new, old, weights, model, new_head)
        kept = len(set(old) & set(new))
        notes.append(
            f"another vocabulary: {pluralize(kept, 'tokens')} keep their weights by name"
            f"{_named(new, old, 'new, initialised at random')}{_named(old, new, 'left out')}"
        )
    load_weights(model, weights)
    return "; ".join(notes) or None


def _shapes(head: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the shapes of a copy head's weights, whatever the vocabulary."""
    return {name: x.shape[1:] if "embedding" in name else x.shape for name, x in head.items()}


def _named(tokens: Sequence[str], others: Sequence[str], what: str) -> str:
    """Return how many of the tokens are not among the others, and the first of them."""
    known = set(others)
    found = [token for token in tokens if token not in known]
    if not found:
        return ""
    shown = ", ".join(str(token) for token in found[:_NUM_TOKENS_NAMED])
    return f"; {len(found):,} {what} ({shown}{', …' if len(found) > _NUM_TOKENS_NAMED else ''})"


def _with_rows_of(
    new: Sequence[str],
    old: Sequence[str],
    weights: Mapping[str, Tensor],
    model: nn.Module,
    new_head: bool,
) -> dict[str, Any]:
    """Return the weights of old tokens with rows for new ones.

    Rows of tokens in both vocabularies come from `weights`, the others from `model`.
    """
    old_rows = {token: row for row, token in enumerate((*old, Vocabulary.PAD))}
    new_rows = {token: row for row, token in enumerate((*new, Vocabulary.PAD))}
    shared = [token for token in new_rows if token in old_rows]
    target, source = ([rows[token] for token in shared] for rows in (new_rows, old_rows))
    initial, mapped = model.state_dict(), {}
    by_token = ("lagged.", *([] if new_head else [f"{_COPY_HEAD}embedding"]))
    others = [name for name in initial if name.startswith(by_token)]
    for name in (*_TOKEN_ROWS, *others):
        saved = weights.get(name)
        rows = initial[name].clone()
        if not isinstance(saved, Tensor) or saved.shape != (len(old_rows), *rows.shape[1:]):
            raise UserError("its weights do not fit its vocabulary; use another")
        rows[target] = saved[source].to(rows.dtype)
        mapped[name] = rows
    return {**weights, **mapped}


def _different_model(
    saved: CheckpointContent, content: CheckpointContent, but: str | None = None
) -> str:
    """Return the settings, but one, in which a checkpoint's model differs from this run's."""
    # The models of older versions lack settings, which then have their defaults.
    options = [
        p for kind in (Transformer, LayerSettings) for p in signature(kind).parameters.items()
    ]
    defaults = {
        f"model.{name}": list(p.default) if isinstance(p.default, tuple) else p.default
        for name, p in options
        if p.default is not p.empty
    }
    models = ({k: v for k, v in c.model.items() if k != but} for c in (content, saved))
    here, there = (defaults | _settings(model, "model") for model in models)
    differing = [
        f"{name}={there[name]} (not {here[name]})"
        for name in there.keys() & here.keys()  # later versions may have more settings
        if there[name] != here[name] and name.rpartition(".")[2] not in _MAY_CHANGE
    ]
    return ", ".join(sorted(differing))


def _settings(config: Any, name: str) -> dict[str, Any]:
    """Return settings by their names on the command line; the value of a group is its class."""
    if not isinstance(config, Mapping):
        return {name: config}
    found = {name: config.get("_target_", "{…}").rpartition(".")[2]}
    for key, value in config.items():
        if not key.startswith("_"):
            found |= _settings(value, f"{name}.{key}")
    return found
