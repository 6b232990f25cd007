"""Structure of a Lightning program: a LightningDataModule with ImageFolders, a LightningModule, a Trainer under DDP."""

import lightning
import torch
from torch import nn

from reader import MemmapDataset
from reader import MemmapLoader as DataLoader
from reader import transforms as v2
from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


class Images(lightning.LightningDataModule):
    def __init__(self, options):
        super().__init__()
        self.options = options
        floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        learn = v2.Compose([v2.RandomResizedCrop(options.size), v2.RandomHorizontalFlip(), *floats])
        look = v2.Compose([v2.Resize(options.size * 256 // 224), v2.CenterCrop(options.size), *floats])
        self.train = MemmapDataset(options.data / "train", transform=learn)
        self.val = MemmapDataset(options.data / "val", transform=look)

    def train_dataloader(self):
        return DataLoader(self.train, self.options.batch_size, shuffle=True, num_workers=self.options.workers)

    def val_dataloader(self):
        return DataLoader(self.val, self.options.batch_size, num_workers=self.options.workers)


class Classifier(lightning.LightningModule):
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
    trainer.fit(Classifier(len(data.train.classes)), data)


if __name__ == "__main__":
    main()
