#!/usr/bin/env python3
"""DeepSpeed's side of a comparison, one rank: ZeRO stage 3 over Gloo in fp32.

DeepSpeed lives in a venv of its own (docs/benchmarking.md):
    torchrun --nproc-per-node 2 zero3.py --size seed --weights FILE
"""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402

import driver_link  # noqa: E402
import model  # noqa: E402


def settings(batch):
    return {
        "train_micro_batch_size_per_gpu": batch,
        "zero_optimization": {"stage": 3},
        # Torch's fused AdamW, as the others; DeepSpeed's own is compiled on demand.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=model.SIZES, required=True)
    parser.add_argument("--vocab", type=int, default=0)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--lr", type=float, default=3e-4)
    options = parser.parse_args()

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    size = model.size_of(options.size, options.vocab)
    module, tokens, target = model.load(options.weights, size, rank)
    parameters = sum(p.numel() for p in module.parameters())
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.lr, fused=True)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=settings(size.batch)
    )

    def step():
        loss = model.loss_of(engine(tokens), target)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    driver_link.serve(step, rank, parameters, "gloo")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
