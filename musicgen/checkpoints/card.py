"""The card of a published model: what it is, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from musicgen.checkpoints.content import CheckpointContent

_CARD = """\
---
library_name: musicgen-symbolic
tags: [music, symbolic-music, midi]
---
# A symbolic-music model

It continues MIDI files, with musicgen (`pip install musicgen-symbolic`):

```python
import musicgen

model = musicgen.load("FOLDER")  # or hf://USER/NAME
model.generate("song.mid", prompt_bars=4, bars=16)[0].save("continued.mid")
```

| | |
|---|---|
| weights | {num_weights:,} |
| layers × width | {layers} × {dim} |
| attention | {attention} |
| position | {position} |
| tokenizer | {tokenizer}, {num_tokens:,} tokens |
| trained on | {corpus}, in windows of {length} tokens |
| steps | {steps:,} |
"""


def model_card(content: CheckpointContent, weights: Mapping[str, Tensor]) -> str:
    """Describe a model in Markdown, with the front matter that the Hugging Face Hub reads."""
    model, loader = content.model, content.config.get("loader") or {}
    attention = _name(model.get("attention"))
    if features := _name((model.get("attention") or {}).get("feature_map")):
        attention += f" with {features}"
    return _CARD.format(
        num_weights=sum(tensor.numel() for tensor in weights.values()),
        layers=model.get("num_layers"),
        dim=model.get("dim"),
        attention=attention,
        position=_name(model.get("position")),
        tokenizer=_name(content.tokenizer),
        num_tokens=len(content.vocabulary),
        corpus=_name(content.config.get("data")) or "a corpus",
        length=loader.get("length"),
        steps=content.steps,
    )


def _name(config: Any) -> str:
    """Return the class that a configuration names."""
    return str((config or {}).get("_target_", "")).rpartition(".")[2]
