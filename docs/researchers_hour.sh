#!/usr/bin/env bash
# A researcher's first hour: trains three encodings, continues each run, and compares them.
# [STEPS=600] bash docs/researchers_hour.sh [SETTING=VALUE ...]
set -euo pipefail
STEPS=${STEPS:-600}

python train.py -m position=rope,sine_spe,alibi attention=softmax trainer.max_steps=$STEPS hydra.sweep.dir=hour "$@"

# Continue each run in its folder with its next batches; W&B records the curves offline.
for run in hour/0 hour/1 hour/2; do
  WANDB_MODE=offline python train.py resume=$run trainer.max_steps=$((STEPS * 3 / 2)) logger=wandb
done

python evaluate.py hour/0 hour/1 hour/2 out=hour/comparison
