#!/usr/bin/env python3
"""Train CLIP on image-text pairs: an image encoder and a text encoder whose embeddings of a pair are alike.

    pack pairs.csv out/ --size 224 --text-column caption
    python examples/clip.py out/ --epochs 30 --batch-size 512 --weights clip.pt

Texts are tokenized once, as bytes of UTF-8; any tokenizer of list[str] to int64[N, L] can replace this one. Needs torchvision.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from reader import Compose, MemmapDataset, MemmapLoader, Normalize, RandomHorizontalFlip, RandomResizedCrop, StoreError


def tokenize(texts: Sequence[str], length: int) -> torch.Tensor:
    """Return the first bytes of each text as int64[N, length]: 1 to 256, 0 behind its end."""
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
        # the first byte counts in any case, so that an empty text has a mean
        is_there = torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, 1:]], dim=1).bool()
        found = self.layers(self.bytes(tokens) + self.positions, src_key_padding_mask=~is_there)
        return (found * is_there[..., None]).sum(1) / is_there.sum(1, keepdim=True)


def clip_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the symmetric cross-entropy of float[B, D] twice: the partner of each row is the same row of the other."""
    images, texts = (nn.functional.normalize(one.float(), dim=1) for one in (images, texts))
    scores = scale.exp().clamp(max=100) * images @ texts.T
    partners = torch.arange(len(scores), device=scores.device)
    return (nn.functional.cross_entropy(scores, partners) + nn.functional.cross_entropy(scores.T, partners)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, packed with --text-column")
    parser.add_argument("--model", default="resnet50", help="a ResNet of torchvision")
    parser.add_argument("--side", type=int, default=224, help="of a crop, in pixels")
    parser.add_argument("--length", type=int, default=77, help="bytes of a text that are taken")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=Path, help="write the weights to this file in the end")
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
        encoder = get_model(options.model, weights=None, num_classes=256)
    except ImportError as e:
        sys.exit(f"clip.py: {e}. Install it: pip install --no-deps torchvision")
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"clip.py: {e}")
    images = nn.Sequential(Normalize.of(store.manifest), encoder)
    model = nn.ModuleDict({"images": images, "texts": TextEncoder(options.length, 256, layers=4)}).to(loader.device)
    scale = torch.tensor(1 / 0.07).log().to(loader.device).requires_grad_()
    optimizer = torch.optim.AdamW([*model.parameters(), scale], options.lr, weight_decay=0.1)
    for epoch in range(1, options.epochs + 1):
        for batch in loader:
            with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
                loss = clip_loss(model["images"](batch.images), model["texts"](batch.extras["tokens"]), scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    if options.weights:
        torch.save(model.state_dict(), options.weights)


if __name__ == "__main__":
    main()
