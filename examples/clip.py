#!/usr/bin/env python3
"""Train CLIP on image-text pairs: a ResNet of torchvision and a text encoder, whose embeddings of a pair are alike.

    pack pairs.csv out/ --size 224 --text-column caption
    python examples/clip.py out/ --epochs 30 --batch-size 512 --weights clip.pt

AdamW with warmup and a cosine. Texts are tokenized once, as bytes of UTF-8; use any other tokenizer to int64[N, L].
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from network import decayed, warmup_and_cosine
from torch import nn

from pixpack import Compose, MemmapDataset, MemmapLoader, Normalize, RandomHorizontalFlip, RandomResizedCrop, StoreError


def tokenize(texts: list[str], length: int) -> torch.Tensor:
    """Return the first bytes of each text as int64[N, length]: 1 to 256, and 0 after the end."""
    rows = [[byte + 1 for byte in text.encode()[:length]] for text in texts]
    return torch.tensor([row + [0] * (length - len(row)) for row in rows])


class TextEncoder(nn.Module):
    """A transformer over bytes: int64[B, L] -> float32[B, width], the mean over the bytes of each text."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(257, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        is_text = torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, 1:]], dim=1).bool()  # an empty text has one byte
        hidden = self.layers(self.bytes(tokens) + self.positions, src_key_padding_mask=~is_text)
        return (hidden * is_text[..., None]).sum(1) / is_text.sum(1, keepdim=True)


def clip_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the symmetric cross-entropy of two float[B, D]: row i of one belongs to row i of the other."""
    images, texts = (nn.functional.normalize(one.float(), dim=1) for one in (images, texts))
    scores = scale.exp().clamp(max=100) * images @ texts.T
    pairs = torch.arange(len(scores), device=scores.device)
    return (nn.functional.cross_entropy(scores, pairs) + nn.functional.cross_entropy(scores.T, pairs)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, packed with --text-column")
    parser.add_argument("--model", default="resnet50", help="a ResNet of torchvision")
    parser.add_argument("--side", type=int, default=224, help="of a crop, in pixels")
    parser.add_argument("--length", type=int, default=77, help="bytes of a text that are used")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=5e-4, help="the highest learning rate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=Path, help="write the weights to this file at the end")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        from torchvision.models import get_model

        store = MemmapDataset(options.store, as_tuple=False)
        if not store.manifest.texts:
            sys.exit(f"clip.py: {options.store} has no texts. Pack it with --text-column.")
        pairs = store.with_extras(tokens=tokenize(next(iter(store.texts.values())), options.length))
        crops = Compose([RandomResizedCrop(options.side, scale=(0.5, 1.0)), RandomHorizontalFlip()])
        keys = {"shuffle": True, "drop_last": True, "device": options.device, "transform": crops, "as_tuple": False}
        loader = MemmapLoader(pairs, options.batch_size, **keys)
        encoder = nn.Sequential(Normalize.of(store.manifest), get_model(options.model, weights=None, num_classes=256))
    except ImportError as e:
        sys.exit(f"clip.py: {e}. Install it: pip install --no-deps torchvision")
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"clip.py: {e}")
    model = nn.ModuleDict({"images": encoder, "texts": TextEncoder(options.length, 256, layers=4)})
    model.register_parameter("scale", nn.Parameter(torch.tensor(1 / 0.07).log()))
    model = model.to(loader.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(decayed(model, 0.2), options.lr, betas=(0.9, 0.98), eps=1e-6)
    schedule = warmup_and_cosine(optimizer, options.epochs * len(loader))
    for epoch in range(1, options.epochs + 1):
        for batch in loader:
            with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
                loss = clip_loss(model["images"](batch.images), model["texts"](batch.extras["tokens"]), model.scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    if options.weights:
        torch.save(model.state_dict(), options.weights)


if __name__ == "__main__":
    main()
