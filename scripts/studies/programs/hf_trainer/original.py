"""Structure of transformers' run_image_classification.py: an image folder of HF datasets, set_transform, collate_fn, Trainer."""

import tempfile

import torch
from datasets import load_dataset
from torch import nn
from torchvision.transforms import v2
from transformers import Trainer, TrainerCallback, TrainingArguments

from scripts.studies.programs.common import MEAN, STD, Log, network, parsed


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.model = network(classes)

    def forward(self, pixel_values, labels):
        logits = self.model(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class LogCallback(TrainerCallback):
    def __init__(self):
        self.lines, self.trainer = Log(), None

    def on_epoch_begin(self, *_, **__):
        self.lines.begin()

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.lines.step(torch.tensor(float(logs["loss"])))

    def on_epoch_end(self, *_, **__):
        self.lines.end(lambda: self.trainer.evaluate()["eval_loss"])


def collate_fn(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}


def main():
    options = parsed()
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    learn = v2.Compose([v2.RandomResizedCrop(options.size), v2.RandomHorizontalFlip(), *floats])
    look = v2.Compose([v2.Resize(options.size), v2.CenterCrop(options.size), *floats])

    def train_transforms(examples):
        examples["pixel_values"] = [learn(image.convert("RGB")) for image in examples.pop("image")]
        return examples

    def val_transforms(examples):
        examples["pixel_values"] = [look(image.convert("RGB")) for image in examples.pop("image")]
        return examples

    files = {split: f"{options.data}/{split}/**" for split in ("train", "val")}
    cache = tempfile.mkdtemp(dir=options.data.parent)
    dataset = load_dataset("imagefolder", data_files=files, cache_dir=cache)
    classes = dataset["train"].features["label"].names
    dataset["train"].set_transform(train_transforms)
    dataset["val"].set_transform(val_transforms)
    lines = LogCallback()
    lines.trainer = trainer = Trainer(
        model=Classifier(len(classes)),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(dir=options.data.parent),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size,
            dataloader_num_workers=options.workers,
            learning_rate=0.01,
            seed=options.seed,
            logging_steps=1,
            save_strategy="no",
            remove_unused_columns=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=dataset["train"],
        eval_dataset=dataset["val"],
        data_collator=collate_fn,
        callbacks=[lines],
    )
    trainer.train()


if __name__ == "__main__":
    main()
