"""A detection training of ultralytics: YOLO(...).train(data=yaml), its trainer, its dataset, its mosaic."""

from ultralytics import YOLO
from ultralytics.data import base

from reader import MemmapDataset
from scripts.studies.programs.common import Log, parsed


def main():
    options = parsed()
    log = Log()
    stores = {split: MemmapDataset(options.data, split=split) for split in ("train", "val")}
    base.imread = lambda file, **_: (  # uint8[H, W, BGR], as cv2 reads
        stores[file.split("/")[-2]].loader(file.split("/")[-1]).flip(0).movedim(0, -1).contiguous().numpy()
    )
    model = YOLO("yolo11n.yaml", task="detect")
    model.add_callback("on_train_epoch_start", lambda trainer: log.begin())
    model.add_callback("on_train_batch_end", lambda trainer: log.step(trainer.loss / trainer.batch_size))
    model.add_callback("on_train_epoch_end", lambda trainer: log.end())
    model.train(
        data=str(options.data.with_name("boxes.yaml")),
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
        conf=0.9,  # nothing is so likely yet: suppressing boxes needs the C part of torchvision
    )


if __name__ == "__main__":
    main()
