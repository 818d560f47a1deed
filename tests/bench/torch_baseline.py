#!/usr/bin/env python3
"""Measures the speed of PyTorch at the trainers' shapes: the baseline of tests/bench/gpu.sh and gpus.sh.

    python3 tests/bench/torch_baseline.py --model 124m
    torchrun --standalone --nproc_per_node=2 tests/bench/torch_baseline.py --model 1b --mode fsdp2
    python3 tests/bench/torch_baseline.py --model tiny --device cpu        # self test: does it run and learn?

It trains the same transformer, written as usual in PyTorch: torch.compile, flash attention, fused AdamW.

Equal to the C trainers: the shapes, the rule that counts FLOPs (6 per matmul weight and token, attention over the
causal half), bf16 products and activations, fp32 master weights and optimizer state, clipping to a norm of 1, Zipf
tokens that are copied to the GPU in each step.

Different:
- Autocast converts the weights to bf16 in each forward pass. In the C trainers AdamW writes the bf16 weights.
- A weight gradient is rounded to bf16 by its product. The C trainers add it up in fp32.
- The cross entropy reads fp32 logits.
- The host waits for the loss once, at the end, not in every step.
- The learning rate is constant.
"""
import argparse
import collections
import contextlib
import functools
import itertools
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

PEAK = 989e12  # FLOP/s of an H100 or H200, dense bf16
EPS = 1e-5     # of the norms

# The letters are those of common/kernels/kernels.h. B: sequences of a GPU's micro-step, unless --batch sets them.
Shape = collections.namedtuple("Shape", "L C H K D F V T theta B")
MODELS = {  # as in common/model/model_config.c
    "tiny": Shape(2, 128, 4, 2, 32, 256, 512, 128, 1e4, 4),
    "124m": Shape(12, 768, 12, 12, 64, 2048, 50304, 1024, 1e4, 64),
    "350m": Shape(24, 1024, 16, 16, 64, 2816, 50304, 1024, 1e4, 32),
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, 4096, 5e5, 4),
}


def flops_per_token(s):
    layer = (s.H + 2 * s.K) * s.D * s.C + s.H * s.D * s.C + 3 * s.C * s.F
    return 6 * (s.L * layer + s.C * s.V) + 6 * s.L * s.H * s.D * (s.T + 1)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        f = x.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)
        return (f * self.weight.float()).to(x.dtype)


def rope(x, cos, sin):  # x [B, T, heads, D]; cos, sin [T, 1, D/2]
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.head_dim = [s.H, s.K, s.K], s.D
        self.norm1, self.norm2 = RMSNorm(s.C), RMSNorm(s.C)
        self.qkv = nn.Linear(s.C, (s.H + 2 * s.K) * s.D, bias=False)
        self.o = nn.Linear(s.H * s.D, s.C, bias=False)
        self.gate_up = nn.Linear(s.C, 2 * s.F, bias=False)
        self.down = nn.Linear(s.F, s.C, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.head_dim)).split(self.heads, dim=2)
        q, k, v = rope(q, cos, sin).transpose(1, 2), rope(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        grouped = self.heads[0] != self.heads[1]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def head_loss(norm, weight, x, label):
    logits = F.linear(norm(x), weight)
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), label.reshape(-1))


class Model(nn.Module):
    def __init__(self, s, seed):
        super().__init__()
        self.embed = nn.Embedding(s.V, s.C)  # also the head's weight
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.L))
        self.norm = RMSNorm(s.C)
        self.head_loss = head_loss
        angle = torch.outer(torch.arange(s.T).float(), s.theta ** (-torch.arange(0, s.D, 2).float() / s.D))
        self.register_buffer("cos", angle.cos().unsqueeze(1), persistent=False)
        self.register_buffer("sin", angle.sin().unsqueeze(1), persistent=False)
        g = torch.Generator(device=angle.device).manual_seed(seed)  # the same weights on every rank
        with torch.no_grad():
            for name, p in self.named_parameters():
                narrow = name.endswith(("o.weight", "down.weight"))
                if p.dim() == 2:
                    p.normal_(0, 0.02 / math.sqrt(2 * s.L) if narrow else 0.02, generator=g)

    def forward(self, token, label):
        x = self.embed(token).to(torch.bfloat16)  # the residual stream
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head_loss(self.norm, self.embed.weight, x, label)


def batches(s, sequences, seed, device):
    """Yields pairs (token, label) without end. Draws eight batches first, then copies them to the device in turn."""
    g = torch.Generator().manual_seed(seed)
    weight = 1 / (torch.arange(s.V, dtype=torch.float64) + 2.7)
    cdf, ids = (weight / weight.sum()).cumsum(0), torch.randperm(s.V, generator=g)
    ring = []
    for _ in range(8):
        lot = torch.rand(sequences, s.T + 1, generator=g, dtype=torch.float64)
        batch = ids[torch.searchsorted(cdf, lot).clamp_(max=s.V - 1)]
        ring.append(batch.pin_memory() if device.type == "cuda" else batch)
    for batch in itertools.cycle(ring):
        batch = batch.to(device, non_blocking=True)
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def parallelize(model, mode, device, world):
    """Returns the function (token, label) -> loss, a function that makes the context of its call, and a function
    that makes the context of a micro-step."""
    # On a CPU nothing is compiled, because the self test times nothing and should not need a compiler.
    compiled = (lambda f: torch.compile(f, dynamic=False)) if device.type == "cuda" else (lambda f: f)
    autocast, nothing = functools.partial(torch.autocast, device.type, dtype=torch.bfloat16), contextlib.nullcontext
    if mode == "single":
        return compiled(model), autocast, lambda last: nothing()
    if mode == "ddp":
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None,
                                                  gradient_as_bucket_view=True, broadcast_buffers=False)
        # Compiles the DDP module, so that the graph is cut at the buckets, and their sums overlap the backward pass.
        return compiled(ddp), autocast, lambda last: nothing() if last else ddp.no_sync()

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(device.type, (world,))
    # FSDP does not cast inputs: the residual stream is bf16 already, and RoPE's tables must stay fp32.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.layers:
        if device.type == "cuda":
            layer.compile(dynamic=False)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    model.head_loss = compiled(head_loss)

    def sum_in_last(last):
        model.set_requires_gradient_sync(last)
        return nothing()
    return model, nothing, sum_in_last


def main():
    parser = argparse.ArgumentParser(description="PyTorch's speed at the trainers' shapes")
    parser.add_argument("--model", default="124m", choices=list(MODELS))
    parser.add_argument("--mode", default="single", choices=["single", "ddp", "fsdp2"])
    parser.add_argument("--batch", type=int, help="sequences per GPU and micro-step (the model's)")
    parser.add_argument("--accum", type=int, default=1, help="micro-steps in a step")
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them, compilation included")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = parser.parse_args()
    rank, world, local = (int(os.environ.get(k, v)) for k, v in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    parallel, cuda = a.mode != "single", a.device == "cuda"
    if parallel != ("RANK" in os.environ):
        parser.error("ddp and fsdp2 run under torchrun, single does not")
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        for other in "math", "mem_efficient", "cudnn":  # only flash attention is left
            getattr(torch.backends.cuda, f"enable_{other}_sdp")(False)
    if parallel:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)

    s = MODELS[a.model]
    sequences = a.batch or s.B
    with torch.device(device):
        model = Model(s, seed=1337)
    loss_of, autocast, micro_step = parallelize(model, a.mode, device, world)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0}],
                                  lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    data = batches(s, sequences, 1337 + 1000 * rank, device)

    def step():
        for m in range(a.accum):
            token, label = next(data)
            with micro_step(m == a.accum - 1):
                with autocast():
                    loss = loss_of(token, label) / a.accum
                loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach() * a.accum  # the last micro-step's loss

    def mark():
        event = torch.cuda.Event(enable_timing=True) if cuda else time.perf_counter()
        if cuda:
            event.record()
        return event

    first = step().item()
    for _ in range(a.warmup - 1):
        step()
    marks = [mark()]  # one at the end of each step, so gaps between steps count; nothing between them waits for the GPU
    for _ in range(a.steps):
        loss = step()
        marks.append(mark())
    if cuda:
        torch.cuda.synchronize()
    ms = statistics.median(p.elapsed_time(q) if cuda else 1e3 * (q - p) for p, q in zip(marks, marks[1:]))
    worst = torch.tensor([ms, torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else 0], device=device)
    if parallel:
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    ms, peak_gib = worst.tolist()
    tokens = sequences * s.T * a.accum * world / ms * 1e3
    if rank == 0:
        print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if cuda else 'cpu'}: "
              f"{sequences} sequences per rank and micro-step, loss {first:.4f} -> {loss.item():.4f}")
        print(f"result {a.model} {a.mode} {world} tokens_per_s {tokens:.0f} "
              f"mfu {tokens / world * flops_per_token(s) / PEAK:.4f} peak_gib {peak_gib:.2f} ms {ms:.3f}")
    if parallel:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
