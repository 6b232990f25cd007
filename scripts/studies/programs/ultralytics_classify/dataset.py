"""A classification training of ultralytics: YOLO(...).train(data=folder), its trainer, its dataset, its augmentation."""

from ultralytics import YOLO
from ultralytics.data import ClassificationDataset

from reader import MemmapDataset
from scripts.studies.programs.common import Log, parsed


def main():
    options = parsed()
    log = Log()
    stores = {split: MemmapDataset(options.data, split=split) for split in ("train", "val")}
    ClassificationDataset.imread = staticmethod(  # uint8[H, W, BGR], as cv2 reads
        lambda file: stores[file.split("/")[-3]].loader("/".join(file.split("/")[-2:])).flip(0).movedim(0, -1).numpy()
    )
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
