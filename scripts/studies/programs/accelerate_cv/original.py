"""Structure of accelerate's complete_cv_example.py: items that are dicts, squashed evaluation, prepare, gather_for_metrics."""

import os

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


def extract_label(fname):
    return os.path.basename(os.path.dirname(fname))


class PetsDataset(Dataset):
    def __init__(self, file_names, image_transform, label_to_id):
        self.file_names, self.image_transform, self.label_to_id = file_names, image_transform, label_to_id

    def __len__(self):
        return len(self.file_names)

    def __getitem__(self, index):
        fname = self.file_names[index]
        raw_image = Image.open(fname)
        image = self.image_transform(raw_image.convert("RGB"))
        return {"image": image, "label": self.label_to_id[extract_label(fname)]}


def main():
    options = parsed()
    accelerator = Accelerator(cpu=True)
    file_names = sorted(map(str, (options.data / "train").glob("*/*.jpg")))
    id_to_label = sorted({extract_label(fname) for fname in file_names})
    label_to_id = {label: n for n, label in enumerate(id_to_label)}
    random_perm = np.random.permutation(len(file_names))
    cut = int(0.8 * len(file_names))
    files = {"train": [file_names[i] for i in random_perm[:cut]], "val": [file_names[i] for i in random_perm[cut:]]}
    floats = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    learn = v2.Compose([v2.RandomResizedCrop((options.size, options.size), scale=(0.5, 1.0)), *floats])
    look = v2.Compose([v2.Resize((options.size, options.size)), *floats])
    train = PetsDataset(files["train"], learn, label_to_id)
    val = PetsDataset(files["val"], look, label_to_id)
    loader = DataLoader(train, shuffle=True, batch_size=options.batch_size, num_workers=options.workers)
    val_loader = DataLoader(val, shuffle=False, batch_size=options.batch_size, num_workers=options.workers)
    model = network(len(label_to_id))
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
