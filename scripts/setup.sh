#!/usr/bin/env bash
# Make .venv: this checkout in editable form, the pinned packages that it imports, and Pillow-SIMD where it can be built.
#
#   scripts/setup.sh                      what packing and reading need
#   scripts/setup.sh dev                  and the tests and checks; test-all: and every library that some test uses
#   PYTHON=python3.12 scripts/setup.sh    with this Python; the default is python3
#   PIXPACK_APT=no scripts/setup.sh       name the system packages that are missing, but install none
#
# Does nothing where nothing has changed. After an interruption the next run completes .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONPATH PYTHONHOME
PATH=${PATH//"$PWD/.venv/bin:"/}
python=${PYTHON:-python3} wanted=${1:-run} pins=scripts/constraints.txt stamp=.venv/pixpack.stamp
say() { echo "$*" >&2; }
pip_install() { PIP_NO_COMPILE=1 .venv/bin/python -m pip --disable-pip-version-check install -c "$pins" "$@" >&2; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pixpack needs Python 3.11 or newer: set PYTHON to one.")'

# What Debian and Ubuntu lack to make .venv, the compiled part and Pillow-SIMD, and to decode what those leave to jpeg4py.
packages="gcc libc6-dev libjpeg-dev zlib1g-dev libtiff-dev libwebp-dev libfreetype-dev"
if grep -qsi ubuntu /etc/os-release; then packages+=" libturbojpeg"; else packages+=" libturbojpeg0"; fi
"$python" -c 'import ensurepip' 2>/dev/null || packages+=" python3-venv"
[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || packages+=" python3-dev"
missing=$(command -v dpkg-query >/dev/null && for name in $packages; do
    [ "$(dpkg-query -Wf '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
done | xargs) || true
key=$({ cat pyproject.toml setup.py "$pins" scripts/setup.sh reader/native/*.[ch] && "$python" -V && echo "$PWD"; } | cksum)
! grep -qsxF "$wanted $key $missing" "$stamp" || exit 0

if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && [ "${PIXPACK_APT:-}" != no ]; then
    say "Installing system packages: $missing"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing; } >&2 && missing="" ||
        say "apt-get has failed. All works without them, but packing is slower."
elif [ -n "$missing" ]; then
    say "Packing is faster with these system packages. Install them, then run this again: sudo apt-get install -y $missing"
fi

rm -f "$stamp"
if [ "$(.venv/bin/python -V 2>&1)" != "$("$python" -V)" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "Making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
fi
# pip writes RECORD last: without it an interrupted install would pass for a complete one
for info in .venv/lib/python3*/site-packages/*.dist-info; do [ -f "$info/RECORD" ] || rm -rf "$info"; done
say "Installing packages: torch alone has 0.2 GB where pip is offered a build for the CPU, 2.7 GB with CUDA"
pip_install -q pip setuptools pybind11
pip_install --no-build-isolation -e ".${1:+[$1]}"
if [ "$wanted" = test-all ]; then
    # torchvision's compiled part may be of another torch: the tests import its Python part from a folder of its own
    pip_install -q --no-deps --upgrade --target .venv/torchvision torchvision && pip_install -q --no-deps timm
fi
if [ "$(uname -sm)" = "Linux x86_64" ] && ! compgen -G ".venv/lib/*/*/pillow_simd-$(sed -n 's/^pillow-simd==//p' "$pins").dist-info" >/dev/null; then
    say "Building Pillow-SIMD, a minute or two"
    ! grep -qsw avx2 /proc/cpuinfo || export CC="cc -mavx2"
    CFLAGS="-O3 -g0 -DNDEBUG -fwrapv" pip_install --no-deps --no-build-isolation --no-cache-dir --force-reinstall \
        -C tiff=enable -C webp=enable pillow-simd 2>.venv/pillow-simd.log ||
        say "Pillow-SIMD cannot be built (.venv/pillow-simd.log says why). Plain Pillow serves instead, and packing is slower."
fi
# a larger set serves the smaller ones
for each in run dev test-all; do echo "$each $key $missing" >>"$stamp"; [ "$each" != "$wanted" ] || break; done
