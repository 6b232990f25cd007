"""Structure of torchvision's references/detection/train.py: CocoDetection, transforms of boxes, lists of images, many losses."""

import torch
from torch import nn
from torch.utils.data import RandomSampler, SequentialSampler
from torchvision import tv_tensors
from torchvision.transforms import v2

from reader import MemmapDataset, MemmapLoader
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


class Detector(nn.Module):
    """Tells one box and its class for each image: those of the first box are wanted."""

    def __init__(self):
        super().__init__()
        self.box, self.label = network(4), network(3)

    def forward(self, images, targets):
        sides = [[*image.shape[:0:-1]] * 2 for image in images]
        boxes = torch.stack([t["boxes"].float().mean(0) / torch.tensor(s) for t, s in zip(targets, sides, strict=True)])
        labels = torch.stack([target["labels"][0] for target in targets])
        box = torch.cat([self.box(image[None]) for image in images])
        label = torch.cat([self.label(image[None]) for image in images])
        return {
            "loss_box_reg": nn.functional.smooth_l1_loss(box, boxes),
            "loss_classifier": nn.functional.cross_entropy(label, labels),
        }


def get_dataset(options, split, is_train):
    flip = [v2.RandomHorizontalFlip(p=0.5)] if is_train else []
    floats = [v2.ToDtype(torch.float, scale=True), v2.Normalize(MEAN, STD)]
    transforms = v2.Compose([v2.ToImage(), *flip, *floats, v2.SanitizeBoundingBoxes(), v2.ToPureTensor()])
    def wrapped(image, named):
        boxes, labels = (named[name][: named["box_count"]] for name in ("boxes", "box_targets"))
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=image.shape[1:])
        return transforms(tv_tensors.Image(image), {"boxes": boxes, "labels": labels + 1})
    return MemmapDataset(options.data, split=split, transforms=wrapped)


def main():
    options = parsed()
    train, val = get_dataset(options, "train", True), get_dataset(options, "val", False)
    how = {"batch_size": options.batch_size, "num_workers": options.workers, "collate_fn": collate_fn}
    loader = MemmapLoader(train, sampler=RandomSampler(train), seed=options.seed, **how)
    val_loader = MemmapLoader(val, sampler=SequentialSampler(val), **how)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    def evaluate():
        with torch.inference_mode():
            losses = [float(sum(model(images, targets).values())) for images, targets in val_loader]
        return sum(losses) / len(losses)

    log = Log()
    for _ in range(options.epochs):
        log.begin()
        for images, targets in loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.end(evaluate)


if __name__ == "__main__":
    main()
