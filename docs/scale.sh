#!/usr/bin/env bash
# Prepares a corpus in shards and trains on it with several processes, here all on one CPU.
# [PROCESSES=8] bash docs/scale.sh [SETTING=VALUE ...], settings of the corpus and the tokenizer
set -euo pipefail
PROCESSES=${PROCESSES:-8}

# Any machine may encode any shard, at any time.
for shard in $(seq "$PROCESSES"); do
  musicgen-prepare "shard=$shard/$PROCESSES" "$@"
done
musicgen-prepare "$@"

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
torchrun --standalone --nproc_per_node="$PROCESSES" train.py trainer=ddp trainer.accelerator=cpu \
  trainer.devices="$PROCESSES" trainer.precision=32-true trainer.max_steps=20 \
  trainer.val_check_interval=10 model.dim=32 loader.length=64 loader.batch_size=$((2 * PROCESSES)) "$@"
