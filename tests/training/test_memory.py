"""A step that takes more memory than there is."""

from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch

from musicgen.errors import UserError


class Huge(pl.Callback):
    def on_train_batch_start(self, *_):
        torch.ones(2**60)


def test_an_allocation_that_fails_is_one_line_with_cures(run):
    cures = r"more memory than there is: .*loader\.batch_size .* recompute=true"
    with pytest.raises(UserError, match=cures):
        run("huge", f"+callbacks.huge._target_={__name__}.Huge", "trainer.max_steps=1")
