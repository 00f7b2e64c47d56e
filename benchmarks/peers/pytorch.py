#!/usr/bin/env python3
"""PyTorch's side of a comparison, one rank: FSDP2 or DDP.

torchrun --nproc-per-node 2 pytorch.py --mode fsdp2 --size seed --weights FILE
"""

import argparse
import os

import torch
import torch.distributed as dist

import driver_link
import model


def shard(module, bf16):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    settings = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if bf16:
        settings["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for layer in module.layers:
        fully_shard(layer, **settings)
    fully_shard(module, **settings)
    return module


def distribute(module, options):
    if options.mode == "fsdp2":
        return shard(module, options.dtype == "bf16")
    if options.mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(module)
    return module


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["fsdp2", "ddp"], required=True)
    parser.add_argument("--size", choices=model.SIZES, required=True)
    parser.add_argument("--vocab", type=int, default=0)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--lr", type=float, default=3e-4)
    options = parser.parse_args()
    if options.dtype == "bf16" and options.mode != "fsdp2":
        parser.error("--dtype bf16 is a policy of fsdp2; ddp runs in fp32")

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    size = model.size_of(options.size, options.vocab)
    dist.init_process_group("gloo")
    module, tokens, target = model.load(options.weights, size, rank)
    parameters = sum(p.numel() for p in module.parameters())
    module = distribute(module, options)
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.lr, fused=True)

    def step():
        loss = model.loss_of(module(tokens), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    driver_link.serve(step, rank, parameters, "gloo")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
