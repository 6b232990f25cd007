"""Builds the compiled part of packer and reader, if there are a C compiler and libjpeg's headers."""

import glob
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

_PARTS = (
    "augment",
    "blur",
    "copies",
    "crops",
    "jpeg_row",
    "pixel_steps",
    "reads",
    "resample",
    "threads",
    "warp",
)

# Sums are rounded as in the sources; the flags of floating-point operations are not used. Floats are finite: augment.c checks
# it by their bits. So minimum and maximum are one instruction each, which makes saturation and sharpness faster. Functions
# are aligned to cache lines.
_FLAGS = ["-O3", "-ffp-contract=off", "-fno-trapping-math", "-ffinite-math-only", "-fno-signed-zeros"]
_FLAGS += ["-fvisibility=hidden", "-falign-functions=64"]

# one build serves Python 3.11 and later; a free-threaded Python has no stable ABI
_IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


class Wheel(bdist_wheel):
    """A wheel that names no platform if the compiled part could not be built."""

    def run(self) -> None:
        self.run_command("build_ext")
        build = self.get_finalized_command("build_ext")
        if not any(glob.glob(build.get_ext_fullpath(extension.name)) for extension in build.extensions):
            self.distribution.ext_modules = None
            self.root_is_pure, self.py_limited_api = True, False
        super().run()


setup(
    cmdclass={"bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if _IS_STABLE else {},
    ext_modules=[
        Extension(
            "reader._native",
            [f"reader/native/{name}.c" for name in ("native", *_PARTS)],
            depends=sorted(glob.glob("reader/native/*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if _IS_STABLE else [],
            py_limited_api=_IS_STABLE,
            libraries=["jpeg", "m"],
            # a linked-in libjpeg, as in wheels, is for this module alone: another one in the process must not replace it
            extra_link_args=["-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else [],
            extra_compile_args=_FLAGS,
            optional=True,
        )
    ],
)
