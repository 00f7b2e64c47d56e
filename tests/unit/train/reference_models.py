#!/usr/bin/env python3
"""The trainer's models written again with PyTorch's own modules.

Prints one JSON object with an entry for each of SHAPES: losses and gradient
norms of a few plain SGD steps in float64 on weights and tokens that a formula
fills, and the names and shapes of the state. model_parity_test.cpp compares.
"""
import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {  # vocab, d_model, layers, heads, kv heads, d_ff, tied
    "simple": (50, 32, 2, 4, 4, 64, False),
    "seed": (10000, 256, 6, 4, 4, 1024, False),
    "decoder": (50, 32, 2, 4, 2, 48, False),
    "decoder_tied": (50, 32, 2, 4, 1, 48, True),
}


class TransformerLayer(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Linear(ff, d))
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)

    def forward(self, x):
        x = self.norm1(x + self.self_attn(x, x, x)[0])
        return self.norm2(x + self.ff(x))


class SimpleTransformer(nn.Module):
    def __init__(self, vocab, d, layers, heads, kv_heads, ff, tied):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(
            TransformerLayer(d, heads, ff) for _ in range(layers))
        self.output_head = nn.Linear(d, vocab)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output_head(x)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (x * scale)


class Attention(nn.Module):
    """Rotary positions as complex numbers, the mask and softmax written out."""

    def __init__(self, d, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.d_head = heads, kv_heads, d // heads
        self.qkv = nn.Linear(d, (heads + 2 * kv_heads) * self.d_head, bias=False)
        self.out = nn.Linear(d, d, bias=False)

    def rotate(self, x):  # [batch, heads, seq, d_head]
        half = self.d_head // 2
        freq = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * freq
        turn = torch.polar(torch.ones_like(angle), angle)
        z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
        return torch.cat((z.real, z.imag), -1).to(x.dtype)

    def forward(self, x):
        batch, seq, d = x.shape
        size = (batch, seq, -1, self.d_head)
        kv_width = self.kv_heads * self.d_head
        q, k, v = (t.view(size).transpose(1, 2) for t in
                   self.qkv(x).split([d, kv_width, kv_width], -1))
        q, k = self.rotate(q), self.rotate(k)
        owner = [h // (self.heads // self.kv_heads) for h in range(self.heads)]
        k, v = k[:, owner], v[:, owner]
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_head)
        future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, seq, d))


class SwiGLU(nn.Module):
    def __init__(self, d, ff):
        super().__init__()
        self.gate_up = nn.Linear(d, 2 * ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(gate * torch.sigmoid(gate) * up)


class Block(nn.Module):
    def __init__(self, d, heads, kv_heads, ff):
        super().__init__()
        self.attention_norm = RMSNorm(d)
        self.attention = Attention(d, heads, kv_heads)
        self.ff_norm = RMSNorm(d)
        self.ff = SwiGLU(d, ff)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ff(self.ff_norm(x))


class Decoder(nn.Module):
    def __init__(self, vocab, d, layers, heads, kv_heads, ff, tied):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(
            Block(d, heads, kv_heads, ff) for _ in range(layers))
        self.norm = RMSNorm(d)
        if not tied:
            self.output_head = nn.Linear(d, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if hasattr(self, "output_head"):
            return self.output_head(x)
        return F.linear(x, self.embedding.weight)


def run(case):
    kind = Decoder if case.startswith("decoder") else SimpleTransformer
    vocab = SHAPES[case][0]
    model = kind(*SHAPES[case]).double()
    state = [[k, list(v.shape)] for k, v in model.state_dict().items()]
    if case == "seed":
        return {"state": state}

    with torch.no_grad():
        for name, p in model.named_parameters():
            k = torch.arange(1, p.numel() + 1, dtype=torch.float64)
            is_norm = "norm" in name and name.endswith("weight")
            p.copy_((0.1 * torch.sin(k) + is_norm).view(p.shape))
    i = torch.arange(3 * 16).view(3, 16)
    tokens, targets = (i * 7 + 3) % vocab, (i * i + 5) % vocab
    steps = []
    for _ in range(4):
        model.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.linalg.vector_norm(
            torch.stack([p.grad.norm() for p in model.parameters()]))
        steps.append([loss.item(), norm.item()])
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.03 * p.grad
    return {"steps": steps, "state": state}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({case: run(case) for case in SHAPES}))
