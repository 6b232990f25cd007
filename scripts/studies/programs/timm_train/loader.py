"""Structure of timm's train.py: create_dataset, create_loader with timm's own augmentation, Mixup on batches, set_epoch."""

import torch
from timm.data import Mixup, create_loader
from timm.loss import SoftTargetCrossEntropy

from reader import MemmapDataset, MemmapLoader, transforms
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


def main():
    options = parsed()
    dataset_train = MemmapDataset(options.data, split="train")
    dataset_eval = MemmapDataset(options.data, split="val", as_pil=True)
    common = {
        "input_size": (3, options.size, options.size),
        "batch_size": options.batch_size,
        "mean": MEAN,
        "std": STD,
        "num_workers": options.workers,
        "device": torch.device("cpu"),
        "use_prefetcher": False,
        "persistent_workers": False,
    }
    recipe = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "const"}
    learn = transforms.Compose([transforms.timm_train(options.size, **recipe), transforms.Normalize(MEAN, STD)])
    how = {"shuffle": True, "drop_last": True, "seed": options.seed}
    loader_train = MemmapLoader(dataset_train, options.batch_size, transform=learn, **how)
    loader_eval = create_loader(dataset_eval, is_training=False, interpolation="bicubic", crop_pct=0.875, **common)
    classes = len(dataset_train.classes)
    mixup_fn = Mixup(mixup_alpha=0.2, num_classes=classes)
    model = network(classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = SoftTargetCrossEntropy()

    def validate():
        model.eval()
        with torch.inference_mode():
            losses = [
                torch.nn.functional.cross_entropy(model(inputs), target, reduction="none")
                for inputs, target in loader_eval
            ]
        return float(torch.cat(losses).mean())

    log = Log()
    for _ in range(options.epochs):
        model.train()
        log.begin()
        for inputs, target in loader_train:
            inputs, target = mixup_fn(inputs, target)
            loss = criterion(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.end(validate)


if __name__ == "__main__":
    main()
