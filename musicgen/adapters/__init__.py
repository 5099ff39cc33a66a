"""Adapters: few trained weights beside a model's own, which stay as they are."""

from musicgen.adapters.base import Adapter
from musicgen.adapters.copy import Copy
from musicgen.adapters.lora import LoRA
from musicgen.adapters.prefix_state import PrefixState

__all__ = ["Adapter", "Copy", "LoRA", "PrefixState"]
