"""Structure of a Lightning program: a LightningDataModule with ImageFolders, a LightningModule, a Trainer under DDP."""

import lightning
import torch
from torch import nn
from torchvision import datasets
from torchvision.transforms import v2 as transforms

from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


class Images(lightning.LightningDataModule):
    def __init__(self, options):
        super().__init__()
        self.options, self.batch_size = options, options.batch_size
        floats = [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
        learn = transforms.Compose(
            [transforms.RandomResizedCrop(options.size), transforms.RandomHorizontalFlip(), *floats]
        )
        look = transforms.Compose(
            [transforms.Resize(options.size * 256 // 224), transforms.CenterCrop(options.size), *floats]
        )
        folders = ((options.data / "train", learn), (options.data / "val", look))
        self.train, self.val = (datasets.ImageFolder(path, transform=transform) for path, transform in folders)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.train, self.batch_size, shuffle=True, num_workers=self.options.workers)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.val, self.batch_size, num_workers=self.options.workers)


class LightningClassifier(lightning.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.model, self.lines = network(classes), Log()

    def on_train_epoch_start(self):
        self.lines.begin()

    def training_step(self, batch, index):
        images, targets = batch
        loss = nn.functional.cross_entropy(self.model(images), targets)
        self.lines.step(loss)
        return loss

    def validation_step(self, batch, index):
        images, targets = batch
        loss = nn.functional.cross_entropy(self.model(images), targets)
        self.log("val_loss", loss, batch_size=len(targets), sync_dist=True)

    def on_validation_epoch_start(self):
        self.lines.pause()

    def on_train_epoch_end(self):
        self.lines.end(lambda: float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main():
    options = parsed()
    data = Images(options)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, strategy="ddp", max_epochs=options.epochs, num_sanity_val_steps=0, **quiet
    )
    trainer.fit(LightningClassifier(len(data.train.classes)), data)


if __name__ == "__main__":
    main()
