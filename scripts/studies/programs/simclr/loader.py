"""Structure of SimCLR (sthalles): a view generator around one recipe, a DataLoader of lists of views, the InfoNCE loss."""

import torch
from torchvision.transforms import v2

from reader import MemmapDataset, MemmapLoader, MultiView, from_torchvision
from scripts.studies.programs.common import Log, network, parsed


class ContrastiveLearningViewGenerator:
    def __init__(self, base_transform, n_views=2):
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, image):
        return [self.base_transform(image) for _ in range(self.n_views)]


def simclr_pipeline(size, s=1):
    color_jitter = v2.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)
    return v2.Compose(
        [
            v2.RandomResizedCrop(size=size),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([color_jitter], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.GaussianBlur(kernel_size=size // 20 * 2 + 1, sigma=(0.1, 2.0)),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def info_nce_loss(features, n_views=2, temperature=0.07):
    labels = torch.arange(len(features) // n_views).repeat(n_views)
    same = labels[None] == labels[:, None]
    features = torch.nn.functional.normalize(features, dim=1)
    others = ~torch.eye(len(labels), dtype=torch.bool)
    similarity = (features @ features.T)[others].view(len(labels), -1)
    same = same[others].view(len(labels), -1)
    positives = similarity[same].view(len(labels), -1)
    logits = torch.cat([positives, similarity[~same].view(len(labels), -1)], dim=1)
    return torch.nn.functional.cross_entropy(logits / temperature, torch.zeros(len(labels), dtype=torch.long))


def main():
    options = parsed()
    train = MemmapDataset(
        options.data / "train", transform=MultiView([from_torchvision(simclr_pipeline(options.size))] * 2)
    )
    loader = MemmapLoader(
        train,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        pin_memory=True,
        seed=options.seed,
        drop_last=True,
    )
    model = network(32)
    optimizer = torch.optim.Adam(model.parameters(), 0.003, weight_decay=1e-4)
    log = Log()
    for _ in range(options.epochs):
        log.begin()
        for images, _targets in loader:
            images = torch.cat(images, dim=0)
            loss = info_nce_loss(model(images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.end()


if __name__ == "__main__":
    main()
