"""A classification training of ultralytics: YOLO(...).train(data=folder), its trainer, its dataset, its augmentation."""

from ultralytics import YOLO
from ultralytics.models.yolo.classify import train

from reader import MemmapDataset, MemmapLoader, from_torchvision
from scripts.studies.programs.common import Log, parsed


def main():
    options = parsed()
    def build_dataloader(dataset, batch, *_, **__):
        rows = MemmapDataset(options.data, split=dataset.root.name, transform=from_torchvision(dataset.torch_transforms))
        rows.torch_transforms = dataset.torch_transforms
        return MemmapLoader(rows, batch, shuffle=True, seed=options.seed, as_dict=("img", "cls"))
    train.build_dataloader = build_dataloader
    log = Log()
    model = YOLO("yolo11n-cls.yaml", task="classify")
    model.add_callback("on_train_epoch_start", lambda trainer: log.begin())
    model.add_callback("on_train_batch_end", lambda trainer: log.step(trainer.loss))
    model.add_callback("on_train_epoch_end", lambda trainer: log.end())
    model.train(
        data=str(options.data.with_name("images")),
        epochs=options.epochs,
        batch=options.batch_size,
        imgsz=options.size,
        workers=options.workers,
        seed=options.seed,
        device="cpu",
        project=str(options.data.parent / "runs"),
        plots=False,
        save=False,
        verbose=False,
    )


if __name__ == "__main__":
    main()
