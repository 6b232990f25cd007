"""Structure of KellerJordan's cifar10-airbench: all images in memory, one padded copy, alternating flips, batch crops."""

from math import ceil

import torch
import torch.nn.functional as F
from torchvision import datasets
from torchvision.transforms import v2

from scripts.studies.programs.common import Log, network, parsed

CIFAR_MEAN = torch.tensor((0.4914, 0.4822, 0.4465)).view(1, 3, 1, 1)
CIFAR_STD = torch.tensor((0.2470, 0.2435, 0.2616)).view(1, 3, 1, 1)


def batch_flip_lr(inputs):
    flip_mask = (torch.rand(len(inputs), device=inputs.device) < 0.5).view(-1, 1, 1, 1)
    return torch.where(flip_mask, inputs.flip(-1), inputs)


def batch_crop(images, crop_size):
    r = (images.size(-1) - crop_size) // 2
    shifts = torch.randint(-r, r + 1, size=(len(images), 2), device=images.device)
    images_out = torch.empty((len(images), 3, crop_size, crop_size), device=images.device, dtype=images.dtype)
    for sy in range(-r, r + 1):
        for sx in range(-r, r + 1):
            mask = (shifts[:, 0] == sy) & (shifts[:, 1] == sx)
            images_out[mask] = images[mask, :, r + sy : r + sy + crop_size, r + sx : r + sx + crop_size]
    return images_out


class CifarLoader:
    def __init__(self, path, train=True, batch_size=500, aug=None):
        dset = datasets.ImageFolder(path, v2.PILToTensor())
        self.images = torch.stack([image for image, _ in dset])
        self.labels, self.classes = torch.tensor(dset.targets), dset.classes
        self.images = (self.images.float() / 255).to(memory_format=torch.channels_last)
        self.normalize = lambda images: (images - CIFAR_MEAN) / CIFAR_STD
        self.proc_images = {}
        self.epoch = 0
        self.aug = aug or {}
        self.batch_size, self.drop_last, self.shuffle = batch_size, train, train

    def __len__(self):
        count = len(self.images) / self.batch_size
        return int(count) if self.drop_last else ceil(count)

    def __iter__(self):
        if self.epoch == 0:
            images = self.proc_images["norm"] = self.normalize(self.images)
            if self.aug.get("flip", False):
                images = self.proc_images["flip"] = batch_flip_lr(images)
            pad = self.aug.get("translate", 0)
            if pad > 0:
                self.proc_images["pad"] = F.pad(images, (pad,) * 4, "reflect")
        if self.aug.get("translate", 0) > 0:
            images = batch_crop(self.proc_images["pad"], self.images.shape[-2])
        elif self.aug.get("flip", False):
            images = self.proc_images["flip"]
        else:
            images = self.proc_images["norm"]
        if self.aug.get("flip", False) and self.epoch % 2 == 1:
            images = images.flip(-1)
        self.epoch += 1
        indices = (torch.randperm if self.shuffle else torch.arange)(len(images), device=images.device)
        for i in range(len(self)):
            idxs = indices[i * self.batch_size : (i + 1) * self.batch_size]
            yield (images[idxs], self.labels[idxs])


def evaluate(model, loader):
    with torch.inference_mode():
        losses = [F.cross_entropy(model(inputs), labels, reduction="none") for inputs, labels in loader]
    return float(torch.cat(losses).mean())


def main():
    options = parsed()
    log = Log()
    log.begin()
    train_loader = CifarLoader(options.data / "train", True, options.batch_size, {"flip": True, "translate": 2})
    test_loader = CifarLoader(options.data / "val", False, options.batch_size)
    model = network(len(train_loader.classes))
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
