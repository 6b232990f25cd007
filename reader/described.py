"""The repr of transforms, for logs and notebooks."""

from __future__ import annotations


class Described:
    """A transform that is shown by its name and the settings that it uses."""

    def __repr__(self) -> str:
        """Return it as "RandomHorizontalFlip(p=0.5, seed=0)", with the arguments as the constructor stored them."""
        settings = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(settings)})"
