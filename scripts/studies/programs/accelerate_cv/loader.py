"""Structure of accelerate's complete_cv_example.py: items that are dicts, squashed evaluation, prepare, gather_for_metrics."""

import numpy as np
import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import OneCycleLR

from reader import MemmapDataset, MemmapLoader
from reader import transforms as v2
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


def main():
    options = parsed()
    accelerator = Accelerator(cpu=True)
    store = MemmapDataset(options.data / "train")
    random_perm = np.random.permutation(len(store))
    cut = int(0.8 * len(store))
    floats = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    learn = v2.Compose([v2.RandomResizedCrop((options.size, options.size), scale=(0.5, 1.0)), *floats])
    look = v2.Compose([v2.Resize((options.size, options.size)), *floats])
    train, val = store.subset(random_perm[:cut]), store.subset(random_perm[cut:])
    as_dict = {"as_dict": ("image", "label")}
    loader = MemmapLoader(train, options.batch_size, shuffle=True, seed=options.seed, transform=learn, **as_dict)
    val_loader = MemmapLoader(val, options.batch_size, transform=look, **as_dict)
    model = network(len(store.classes))
    mean, std = (torch.tensor(values)[None, :, None, None].to(accelerator.device) for values in (MEAN, STD))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 / 25)
    schedule = OneCycleLR(optimizer, max_lr=0.01, epochs=options.epochs, steps_per_epoch=len(loader))
    model, optimizer, loader, val_loader, schedule = accelerator.prepare(model, optimizer, loader, val_loader, schedule)
    log = Log()
    for _ in range(options.epochs):
        model.train()
        log.begin()
        for batch in loader:
            inputs = (batch["image"] - mean) / std
            loss = torch.nn.functional.cross_entropy(model(inputs), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            log.step(loss)

        def evaluate():
            model.eval()
            losses = []
            for batch in val_loader:
                inputs = (batch["image"] - mean) / std
                with torch.no_grad():
                    loss = torch.nn.functional.cross_entropy(model(inputs), batch["label"], reduction="none")
                losses.append(accelerator.gather_for_metrics(loss))
            return float(torch.cat(losses).mean())

        log.end(evaluate)


if __name__ == "__main__":
    main()
