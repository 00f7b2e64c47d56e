"""The model of the presets `seed` and `mid`, with PyTorch's own modules, and the
file by which both sides start from the same weights and tokens."""

from typing import NamedTuple

import torch
import torch.nn as nn
from safetensors import TensorSpec, serialize_file
from safetensors.torch import load_file


class Size(NamedTuple):
    vocab: int
    d_model: int
    heads: int
    d_ff: int
    layers: int
    batch: int  # sequences of a rank
    seq: int


# As the presets of the same names (src/train/presets.cpp).
SIZES = {
    "seed": Size(10000, 256, 4, 1024, 6, 4, 128),
    "mid": Size(10000, 512, 8, 2048, 8, 2, 128),
}


def size_of(name, vocab=0, batch=0):
    """The size of that name, with the sizes that are given in place of its own."""
    size = SIZES[name]
    return size._replace(vocab=vocab or size.vocab, batch=batch or size.batch)


class EncoderLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        d = size.d_model
        self.self_attn = nn.MultiheadAttention(d, size.heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, size.d_ff), nn.GELU(), nn.Linear(size.d_ff, d))
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)

    def forward(self, x):
        # Without the averaged weights, attention takes its fastest path.
        attended, _ = self.self_attn(x, x, x, need_weights=False)
        x = self.norm1(x + attended)
        return self.norm2(x + self.ff(x))


class Transformer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size.vocab, size.d_model)
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.output_head = nn.Linear(size.d_model, size.vocab)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output_head(x)


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def load(path, size, rank):
    """The model, and this rank's input and target, of the file."""
    tensors = load_file(path)
    batch = [tensors[f"tokens.{rank}.{part}"] for part in ("input", "target")]
    weights = {name: t for name, t in tensors.items() if not name.startswith("tokens.")}
    model = Transformer(size)
    model.load_state_dict(weights)
    return model, *batch


def export(path, size, ranks):
    """Writes weights, and tokens for that many ranks. (safetensors.torch.save_file
    would need NumPy.)"""
    torch.manual_seed(0)
    tensors = {name: t.contiguous() for name, t in Transformer(size).state_dict().items()}
    for rank in range(ranks):
        generator = torch.Generator().manual_seed(rank + 1)
        for part in ("input", "target"):
            tokens = torch.randint(0, size.vocab, (size.batch, size.seq), generator=generator)
            tensors[f"tokens.{rank}.{part}"] = tokens
    specs = {
        name: TensorSpec(
            dtype=str(t.dtype).removeprefix("torch."),
            shape=list(t.shape),
            data_ptr=t.data_ptr(),
            data_len=t.numel() * t.element_size(),
        )
        for name, t in tensors.items()
    }
    serialize_file(specs, path)
