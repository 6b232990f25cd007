#!/usr/bin/env bash
# Unpack Debian's Python and libjpeg-turbo for arm64 into a folder, as cross_native.py needs them: scripts/stress/fuzz/arm64_root.sh FOLDER
# Installs nothing, and adds no architecture to dpkg.
set -eu
mkdir -p "$1"
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/packages"
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$work/lists" -o Dir::Cache::pkgcache=
    -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
python=$(apt-cache "${options[@]}" show python3-minimal | sed -n 's/^Version: \(3\.[0-9]*\).*/\1/p' | head -1)
cd "$work/packages"
apt-get "${options[@]}" download libc6 libcrypt1 libexpat1 libgcc-s1 libjpeg62-turbo libjpeg62-turbo-dev zlib1g "libssl3" \
    "python$python-minimal" "libpython$python-minimal" "libpython$python-stdlib" "libpython$python-dev"
for package in *.deb; do
    dpkg -x "$package" "$root"
done
ln -sf "python$python" "$root/usr/bin/python3"
