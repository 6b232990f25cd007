#!/usr/bin/env bash
# Make .venv in the repository root: the pinned packages, this checkout in editable form, the fastest Pillow this machine allows.
#
# The one place for set-up; scripts/quickstart and scripts/test call it. Does nothing where nothing has changed, repairs what an
# interrupted run or somebody's pip has left, needs a network only for what is missing. pip's talk goes to .venv/setup.log.
#
#   PYTHON=python3.12 scripts/setup.sh    which Python to make .venv from; default: python3, or else python3.14 .. python3.11
#   PIXPACK_APT=no scripts/setup.sh       leave the system's packages alone
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
log=$venv/setup.log
pillow_log=$venv/pillow.log # of its build, which runs beside other things that log
stamp=$venv/pixpack.stamp
advice_file=$venv/pixpack.advice
constraints=$root/scripts/constraints.txt
torch_link=$venv/pixpack.torch.pth # outside site-packages until every pin is installed, see reuse_torch
oldest_torch="(2, 11)"             # what tensordict 0.15.3 asks for

main() {
    clean_environment
    take_lock
    trap 'say "Interrupted. The next run continues from here."; exit 130' INT
    trap 'exit 143' TERM
    if ! is_current; then
        make_venv
        install_system_packages
        pip_install "pip and setuptools" -c "$constraints" pip setuptools pybind11
        begin_pillow_wheel
        install_python_packages
        local pillow is_built=yes
        await_pillow_wheel || is_built=no
        pillow=$(install_fastest_pillow "$is_built")
        check_imports
        write_stamp "$pillow"
        give_advice
    elif [ -s "$advice_file" ]; then
        give_advice
    fi
}

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Nothing of the calling shell but its index of packages: a stray PIP_TARGET or PYTHONPATH would put packages elsewhere.
clean_environment() {
    unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_CONSTRAINT PIP_BUILD_CONSTRAINT PIP_DRY_RUN
    export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
    # Python compiles a module when it is first imported: most of those installed never are
    export PIP_NO_COMPILE=1
    PATH=${PATH//"$venv/bin:"/} # .venv cannot be made from the .venv that it replaces
}

# Two set-ups in one folder would undo each other. The lock is on this file: .venv itself may be cleared.
take_lock() {
    command -v flock >/dev/null || return 0
    exec 9<"${BASH_SOURCE[0]}"
    if ! flock -n 9; then
        say "Another set-up of this folder is at work: waiting for it."
        flock 9 || true
    fi
}

# --- what is there ---

simd_level() { if grep -qsw avx2 /proc/cpuinfo; then echo avx2; else echo sse4; fi; }

# Names a build of Pillow-SIMD: another one is built again.
simd_build() { echo "$(simd_level)-O3"; }

# 'pillow==12.1.1' in constraints.txt -> '12.1.1'
pinned() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$constraints"; }

simd_version() { sed -n 's/^simd = .*"pillow-simd==\([^"]*\)".*/\1/p' "$root/pyproject.toml"; }

# The version of the Pillow that Python imports: the last one laid over the folder, whatever pip believes.
live_pillow() { sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$venv"/lib/python3*/site-packages/PIL/_version.py 2>/dev/null || true; }

# What the state of .venv depends on; this folder's path too, which scripts and the editable install in .venv hold.
state_key() {
    { cat "$root/pyproject.toml" "$root/setup.py" "$root"/reader/native/*.[ch] "$constraints" "${BASH_SOURCE[0]}" &&
        echo "$root" && simd_level; } |
        if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi
}

is_current() {
    local key pillow
    [ -x "$venv/bin/python" ] && [ -f "$stamp" ] || return 1
    { read -r key && read -r pillow; } <"$stamp" || return 1
    [ "$key" = "$(state_key)" ] || return 1
    [ ! -f "$torch_link" ] || [ -d "$(cat "$torch_link")/torch" ] || return 1
    is_of_wanted_python || return 1
    case $pillow in
        simd) [ "$(live_pillow)" = "$(simd_version)" ] ;;
        failed) [ "$(live_pillow)" = "$(pinned pillow)" ] ;;
        plain) [ "$(live_pillow)" = "$(pinned pillow)" ] && ! can_build_pillow ;;
        *) return 1 ;;
    esac
}

# A PYTHON that is named decides; otherwise any .venv will do.
is_of_wanted_python() {
    [ -n "${PYTHON:-}" ] || return 0
    local version
    version=$("$PYTHON" -c 'import sys; print("%d.%d." % sys.version_info[:2])' 2>/dev/null) || return 1
    grep -qs "^version.* = $version" "$venv/pyvenv.cfg"
}

write_stamp() {
    { state_key && echo "$1"; } >"$stamp.part"
    mv "$stamp.part" "$stamp"
}

# --- .venv and its packages ---

make_venv() {
    rm -f "$stamp"
    if [ -x "$venv/bin/python" ] && is_of_wanted_python && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "Completing .venv"
        forget_half_installed
        return
    fi
    local python version talk
    python=$(find_python)
    version=$("$python" -c 'import platform; print(platform.python_version())')
    [ ! -e "$venv" ] || say ".venv is unfinished, broken or of another Python: making it again."
    say "Making .venv with Python $version"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || apt_get "python${version%.*}-venv" || true
    if ! talk=$("$python" -m venv --clear "$venv" 2>&1); then
        fail "Python $version cannot make a virtual environment: $(tail -n 1 <<<"$talk")" \
            "On Debian and Ubuntu: apt-get install python3-venv."
    fi
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    candidate=${PYTHON:-python3}
    fail "pixpack needs Python 3.11 or newer; $candidate is $("$candidate" -V 2>/dev/null || echo "not on PATH")." \
        "Set PYTHON to a newer one."
}

# pip writes RECORD last: a .dist-info without it was cut short, yet pip would take it for installed.
forget_half_installed() {
    local info
    for info in "$venv"/lib/python3*/site-packages/*.dist-info; do
        [ -f "$info/RECORD" ] || rm -rf "$info"
    done
    rm -rf "$venv"/lib/python3*/site-packages/~*
}

install_python_packages() {
    local rest=$venv/pixpack.requirements
    cp "$constraints" "$rest"
    if reuse_torch; then
        grep -v '^torch==' "$constraints" >"$rest"
    else
        install_torch
    fi
    say "Installing the other pinned packages"
    pip_install "the pinned packages" --no-deps --no-build-isolation --use-pep517 -r "$rest"
    pip_install "pixpack itself" --no-deps --no-build-isolation -e "$root"
    [ ! -f "$torch_link" ] || cp "$torch_link" "$(site_packages)/pixpack_torch.pth"
}

# A torch of the calling Python that fits is taken over by a .pth line, which puts its folder last on sys.path: the pins in .venv
# win over all else that is there. The line goes in when all pins are installed: pip would take that folder's packages for ours.
reuse_torch() {
    rm -f "$(site_packages)/pixpack_torch.pth"
    if compgen -G "$(site_packages)/torch-*.dist-info" >/dev/null; then
        rm -f "$torch_link"
        return 1
    fi
    local python found
    if [ -f "$torch_link" ] && found=$(PYTHONPATH=$(cat "$torch_link") fitting_torch "$venv/bin/python"); then
        return
    fi
    rm -f "$torch_link"
    python=$(find_python 2>/dev/null) || return 1
    found=$(fitting_torch "$python") || return 1
    sed -n 1p <<<"$found" >"$torch_link"
    say "Reusing torch $(sed -n 2p <<<"$found") of $python"
}

# The folder and the version of a torch that Python $1 can import, that is new enough, and that .venv's Python can load.
fitting_torch() {
    local abi
    abi=$("$venv/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
    (cd "$venv" && "$1" - "$abi" 2>>"$log") <<PYTHON
import sys
if sys.implementation.cache_tag != sys.argv[1]:
    sys.exit(1)
import pathlib
import torch
if tuple(map(int, torch.__version__.split(".")[:2])) < $oldest_torch:
    sys.exit(1)
print(pathlib.Path(torch.__file__).parent.parent, torch.__version__, sep="\n")
PYTHON
}

# torch comes first and alone, so that nothing else decides which build it is.
install_torch() {
    if ! compgen -G "$(site_packages)/torch-$(pinned torch)*.dist-info" >/dev/null; then
        say "Installing torch $(pinned torch): a download of 0.2 GB where pip is offered a CPU build, of 2.7 GB with CUDA, the" \
            "default on Linux. (A torch of the calling Python, 2.11 or newer, would be reused.)"
    fi
    pip_install "torch" -c "$constraints" "torch==$(pinned torch)"
}

site_packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

logged() { "$@" >>"$log" 2>&1; }

pip_install() {
    local what=$1 start
    shift
    touch "$log"
    start=$(wc -l <"$log")
    logged "$venv/bin/python" -m pip install --progress-bar off "$@" || fail "Could not install $what: $(reason_since "$start")"
}

# The last error line of the log after line $1, as one sentence with what to do.
reason_since() {
    local talk
    talk=$(tail -n "+$(($1 + 1))" "$log")
    if grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError' <<<"$talk"; then
        echo "pip could not reach its package index. Check the network, then run this again. (Log: .venv/setup.log)"
    else
        echo "$(grep -E '^ *(ERROR|error)\b' <<<"$talk" | tail -n 1 | cut -c 1-300) (Log: .venv/setup.log)"
    fi
}

check_imports() {
    logged "$venv/bin/python" -c 'import cffi, click, jpeg4py, numpy, PIL.Image, tensordict, torch, tqdm' ||
        fail "The packages in .venv do not import: $(tail -n 1 "$log") (Log: .venv/setup.log) Remove .venv and run this again."
}

# --- what the system has: libturbojpeg for jpeg4py, a compiler and headers for Pillow-SIMD ---

# webp and tiff are needed, not nice to have: a Pillow-SIMD built without them cannot decode such images.
wanted_packages() {
    if grep -qsi ubuntu /etc/os-release; then echo libturbojpeg; else echo libturbojpeg0; fi
    is_simd_machine || return 0
    printf '%s\n' gcc libc6-dev libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev libfreetype-dev liblcms2-dev
    # Only a Python of the distribution comes without its own headers.
    [ -f "$(python_headers)/Python.h" ] ||
        "$venv/bin/python" -c 'import sys; print("libpython%d.%d-dev" % sys.version_info[:2])'
}

python_headers() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

missing_packages() {
    command -v dpkg-query >/dev/null || return 0
    local wanted installed
    wanted=$(wanted_packages)
    # shellcheck disable=SC2086
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null | sed -n 's/^installed //p') || true
    grep -vxF "$installed" <<<"$wanted" || true
}

install_system_packages() {
    if [ "${PIXPACK_APT:-}" != no ] && { ! has_turbojpeg || { is_simd_machine && ! can_build_pillow; }; }; then
        # shellcheck disable=SC2046
        apt_get $(missing_packages) || true
    fi
}

# Install the packages where we may; false where we may not or it failed. Never asks for a password.
apt_get() {
    local as_root=()
    [ $# -gt 0 ] && [ "${PIXPACK_APT:-}" != no ] && command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    say "Installing with apt-get: $*"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120)
    local talk
    if ! talk=$("${apt[@]}" update 2>&1 && "${apt[@]}" install --no-install-recommends "$@" 2>&1); then
        say "apt-get could not: $(grep -E '^E:' <<<"$talk" | head -n 1)"
        return 1
    fi
}

has_turbojpeg() {
    "$venv/bin/python" -c 'import jpeg4py._cffi as c; c.initialize()' 2>/dev/null || on_loader_path libturbojpeg.so.0
}

on_loader_path() { { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } | grep -qF "$1 "; }

# --- Pillow-SIMD ---

is_simd_machine() { [ "$(uname -sm)" = "Linux x86_64" ]; }

can_build_pillow() {
    is_simd_machine && command -v cc >/dev/null || return 1
    printf '#include <%s>\n' stdio.h jpeglib.h zlib.h webp/decode.h tiffio.h Python.h |
        cc -E -I"$(python_headers)" - >/dev/null 2>&1
}

# Beside pip, which waits for the network much of the time, the compiler does not.
begin_pillow_wheel() {
    pillow_build=""
    if can_build_pillow && ! has_pillow_simd; then
        (log=$pillow_log && pillow_wheel >/dev/null 2>&1) &
        pillow_build=$!
    fi
}

# False where the build has failed.
await_pillow_wheel() {
    local code=0
    [ -n "$pillow_build" ] || return 0
    kill -0 "$pillow_build" 2>/dev/null && say "Building Pillow-SIMD $(simd_version) for $(simd_level)"
    wait "$pillow_build" || code=$?
    cat "$pillow_log" >>"$log"
    return $code
}

# Prints simd, plain (cannot be built here) or failed (should have been). $1 is no where its build has failed.
install_fastest_pillow() {
    if ! can_build_pillow; then
        use_plain_pillow
        echo plain
    elif [ "$1" = yes ] && use_pillow_simd; then
        echo simd
    else
        use_plain_pillow
        echo failed
    fi
}

pillow_info() { echo "$(site_packages)/pillow_simd-$(simd_version).dist-info"; }

has_pillow_simd() {
    local info level
    info=$(pillow_info)
    level=$(cat "$info/pixpack-level" 2>/dev/null || true)
    [ -f "$info/RECORD" ] && [ "$(live_pillow) $level" = "$(simd_version) $(simd_build)" ]
}

use_pillow_simd() {
    local wheel
    if has_pillow_simd; then
        return
    fi
    wheel=$(pillow_wheel) || return 1
    # Over plain Pillow, whose metadata stays, so that what asks for pillow finds it.
    logged "$venv/bin/python" -m pip install --no-deps --no-index --force-reinstall "$wheel" || return 1
    simd_build >"$(pillow_info)/pixpack-level"
}

# The path of a wheel built for this CPU and tried; building takes a minute or two, so that it is kept to repair .venv with.
pillow_wheel() {
    local folder wheel
    folder=$venv/pillow-simd/$(simd_build)
    if ! compgen -G "$folder/*$(simd_version)*.whl" >/dev/null; then
        rm -rf "$folder.part"
        # pip's cache knows nothing of CC: without --no-cache-dir a wheel once built for SSE4 would come back.
        # Without debug information, which takes a fifth of the time. setuptools takes CFLAGS in place of Python's own flags, with their -O3.
        CC=$(compiler) CFLAGS="-O3 -DNDEBUG -fwrapv -g0" logged "$venv/bin/python" -m pip wheel --no-deps --no-build-isolation --no-cache-dir \
            --no-binary pillow-simd --wheel-dir "$folder.part" "pillow-simd==$(simd_version)" || return 1
        works "$folder.part"/*.whl || return 1
        rm -rf "$folder"
        mv "$folder.part" "$folder"
    fi
    echo "$folder"/*.whl
}

# Pillow-SIMD itself asks for SSE4, and has AVX2 code for a compiler that is asked for it.
compiler() { if [ "$(simd_level)" = avx2 ]; then echo "cc -mavx2"; else echo cc; fi; }

# Try a wheel before it replaces a Pillow that works: it must know the formats and run on this CPU.
works() {
    local trial=$venv/pillow-simd/trial
    rm -rf "$trial"
    logged "$venv/bin/python" -m zipfile -e "$1" "$trial"
    PYTHONPATH=$trial logged "$venv/bin/python" -c '
from PIL import Image, features
missing = [name for name in ("jpg", "zlib", "webp", "libtiff") if not features.check(name)]
Image.new("RGB", (640, 480)).resize((224, 224), Image.Resampling.BICUBIC)
raise SystemExit(f"this Pillow-SIMD lacks {missing}" if missing else 0)'
    local status=$?
    rm -rf "$trial"
    return $status
}

use_plain_pillow() {
    [ "$(live_pillow)" != "$(pinned pillow)" ] || return 0
    logged "$venv/bin/python" -m pip uninstall -y pillow-simd
    pip_install "pillow" --no-deps --force-reinstall "pillow==$(pinned pillow)"
}

# --- the one line on what would make it faster ---

give_advice() {
    advice >"$advice_file"
    cat "$advice_file" >&2
}

advice() {
    local lacks="" missing
    has_turbojpeg || lacks="libturbojpeg"
    if is_simd_machine && [ "$(live_pillow)" != "$(simd_version)" ]; then
        lacks="${lacks:+$lacks and }Pillow-SIMD"
    fi
    [ -n "$lacks" ] || return 0
    missing=$(missing_packages | tr '\n' ' ')
    printf 'All works; packing would be faster with %s: ' "$lacks"
    if [ "$lacks" = Pillow-SIMD ] && can_build_pillow; then
        echo "its build failed, see .venv/setup.log; to try again: rm .venv/pixpack.stamp, then run this again."
    elif [ -n "$missing" ]; then
        echo "sudo apt-get install -y ${missing% }, then run this again."
    elif [ "$lacks" = libturbojpeg ]; then
        echo "install libjpeg-turbo's TurboJPEG library."
    else
        echo "put cc, a C compiler, on PATH, with headers of libjpeg, zlib, libwebp, libtiff and Python, then run this again."
    fi
}

main
