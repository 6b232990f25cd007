"""Structure of DINO's main_dino.py: two global views by recipes of their own and local views, student, teacher, centre."""

import torch
from torchvision.transforms import v2

from reader import MemmapDataset, MemmapLoader, MultiView, from_torchvision
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


class DataAugmentationDINO:
    def __init__(self, size, local_size, local_crops_number):
        flip_and_color_jitter = v2.Compose(
            [
                v2.RandomHorizontalFlip(p=0.5),
                v2.RandomApply([v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
            ]
        )
        blur = v2.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))
        normalize = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
        self.global_transfo1 = v2.Compose(
            [v2.RandomResizedCrop(size, scale=(0.4, 1.0)), flip_and_color_jitter, blur, normalize]
        )
        self.global_transfo2 = v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=(0.4, 1.0)),
                flip_and_color_jitter,
                v2.RandomApply([blur], p=0.1),
                v2.RandomSolarize(threshold=128, p=0.2),
                normalize,
            ]
        )
        self.local_crops_number = local_crops_number
        self.local_transfo = v2.Compose(
            [
                v2.RandomResizedCrop(local_size, scale=(0.05, 0.4)),
                flip_and_color_jitter,
                v2.RandomApply([blur], p=0.5),
                normalize,
            ]
        )

    def __call__(self, image):
        crops = [self.global_transfo1(image), self.global_transfo2(image)]
        crops += [self.local_transfo(image) for _ in range(self.local_crops_number)]
        return crops


def dino_loss(student, teacher, center):
    teacher = torch.softmax((teacher - center) / 0.04, dim=-1).chunk(2)
    student = torch.log_softmax(student / 0.1, dim=-1).chunk(8)
    pairs = [(t, s) for i, t in enumerate(teacher) for j, s in enumerate(student) if i != j]
    return sum(-(t * s).sum(-1).mean() for t, s in pairs) / len(pairs)


def main():
    options = parsed()
    transform = DataAugmentationDINO(options.size, options.size * 3 // 7, local_crops_number=6)
    kinds = [transform.global_transfo1, transform.global_transfo2, *[transform.local_transfo] * 6]
    train = MemmapDataset(options.data / "train", transform=MultiView([from_torchvision(kind) for kind in kinds]))
    loader = MemmapLoader(train, options.batch_size, shuffle=True, seed=options.seed, drop_last=True)
    student, teacher, center = network(32), network(32), torch.zeros(32)
    teacher.load_state_dict(student.state_dict())
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.002)
    log = Log()
    for _ in range(options.epochs):
        log.begin()
        for images, _targets in loader:
            with torch.no_grad():
                wanted = torch.cat([teacher(image) for image in images[:2]])
            loss = dino_loss(torch.cat([student(image) for image in images]), wanted, center)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            center = center * 0.9 + wanted.mean(0) * 0.1
            for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
                kept.data.lerp_(new.data, 0.004)
            log.step(loss)
        log.end()


if __name__ == "__main__":
    main()
