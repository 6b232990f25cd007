"""Structure of KellerJordan's cifar10-airbench: all images in memory, one padded copy, alternating flips, batch crops."""

import torch
import torch.nn.functional as F

from reader import MemmapDataset, MemmapLoader, transforms
from scripts.studies.programs.common import Log, network, parsed

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def evaluate(model, loader):
    with torch.inference_mode():
        losses = [F.cross_entropy(model(inputs), labels, reduction="none") for inputs, labels in loader]
    return float(torch.cat(losses).mean())


def main():
    options = parsed()
    log = Log()
    log.begin()
    look = transforms.Compose([transforms.Normalize(CIFAR_MEAN, CIFAR_STD)])
    crop = transforms.RandomCrop(options.size, padding=2, padding_mode="reflect")
    learn = transforms.Compose([transforms.AlternatingFlip(), crop, look])
    train, test = (MemmapDataset(options.data / split) for split in ("train", "val"))
    rows = {"shuffle": True, "seed": options.seed, "drop_last": True}
    train_loader = MemmapLoader(train, options.batch_size, transform=learn, **rows)
    test_loader = MemmapLoader(test, options.batch_size, transform=look)
    model = network(len(train.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.85, nesterov=True)
    for epoch in range(options.epochs):
        if epoch:
            log.begin()
        for inputs, labels in train_loader:
            loss = F.cross_entropy(model(inputs), labels, label_smoothing=0.2)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.end(lambda: evaluate(model, test_loader))


if __name__ == "__main__":
    main()
