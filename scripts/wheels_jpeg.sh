#!/usr/bin/env bash
# Build the libjpeg-turbo that wheels for Linux have linked in, as the images they are built in have an older one: scripts/wheels_jpeg.sh PREFIX
set -eu
version=3.1.4.1 commit=9217719d3a58633923b096af4c1d50d304768a64
prefix=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q --depth 1 --branch "$version" "${LIBJPEG_TURBO:-https://github.com/libjpeg-turbo/libjpeg-turbo}" "$work/source"
found=$(git -C "$work/source" rev-parse HEAD)
if [ "$found" != "$commit" ]; then
    echo "wheels_jpeg.sh: the tag $version is commit $found, expected $commit" >&2
    exit 1
fi
# without nasm there is no SIMD on x86: decoding would be slower
cmake -S "$work/source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR="$prefix/lib" -DENABLE_SHARED=0 -DWITH_TURBOJPEG=0 -DCMAKE_POSITION_INDEPENDENT_CODE=1 \
    -DREQUIRE_SIMD="${REQUIRE_SIMD:-1}"
cmake --build "$work/build" --target install --parallel 2
