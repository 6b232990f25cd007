"""Structure of torchvision's references/classification/train.py: presets, two ImageFolders, samplers, two DataLoaders."""

import torch
from torch import nn
from torch.utils import data

from reader import MemmapDataset, MemmapLoader, transforms
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


def load_data(options):
    learn = transforms.Compose(
        [
            transforms.RandomResizedCrop(options.size),
            transforms.RandomHorizontalFlip(0.5),
            transforms.TrivialAugmentWide(),
            transforms.PILToTensor(),
            transforms.ToDtype(torch.float, scale=True),
            transforms.Normalize(mean=MEAN, std=STD),
            transforms.RandomErasing(p=0.1),
        ]
    )
    look = transforms.Compose(
        [
            transforms.Resize(options.size * 256 // 224),
            transforms.CenterCrop(options.size),
            transforms.PILToTensor(),
            transforms.ToDtype(torch.float, scale=True),
            transforms.Normalize(mean=MEAN, std=STD),
        ]
    )
    return MemmapDataset(options.data / "train", transform=learn), MemmapDataset(options.data / "val", transform=look)


def evaluate(model, criterion, loader):
    model.eval()
    with torch.inference_mode():
        losses = [criterion(model(image), target) * len(target) for image, target in loader]
    return float(sum(losses)) / len(loader.dataset)


def main():
    options = parsed()
    train, val = load_data(options)
    train_sampler, val_sampler = data.RandomSampler(train), data.SequentialSampler(val)
    workers = {"num_workers": options.workers, "pin_memory": True}
    loader = MemmapLoader(train, options.batch_size, sampler=train_sampler, seed=options.seed, **workers)
    val_loader = MemmapLoader(val, options.batch_size, sampler=val_sampler, **workers)
    model = network(len(train.classes))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    log = Log()
    for _ in range(options.epochs):
        model.train()
        log.begin()
        for image, target in loader:
            loss = criterion(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.end(lambda: evaluate(model, criterion, val_loader))


if __name__ == "__main__":
    main()
