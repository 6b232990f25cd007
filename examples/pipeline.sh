#!/usr/bin/env bash
# From a folder of class folders to a trained network: find, pack, verify, look, train.
#
#   examples/pipeline.sh IMAGES WORK          SIZE=512 and EPOCHS=2 may be set in the environment
#
# WORK gets wanted/ (links to the images that were chosen), store/, sheet.png and report.json. Run again, it packs nothing.
set -euo pipefail

images=$(cd "${1:?usage: examples/pipeline.sh IMAGES WORK}" && pwd)
work=${2:?usage: examples/pipeline.sh IMAGES WORK}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Choose: JPEGs of more than 1 kB, class by class; below that they are thumbnails or error pages.
jpegs=(-type f "(" -iname "*.jpg" -o -iname "*.jpeg" ")" -size +1k)
for class in "$images"/*/; do
    mkdir -p "$work/wanted/$(basename "$class")"
    find "$class" "${jpegs[@]}" -exec sh -c 'ln -sf "$@" "$0"' "$work/wanted/$(basename "$class")/" {} +
done
echo "chosen, by class:"
find "$work/wanted" -type l | awk -F/ '{ print $(NF - 1) }' | sort | uniq -c

# Pack: exit code 3 says that more than 5 % of the images were rejected; then this ends here.
if [ ! -f "$work/store/manifest.json" ]; then
    pack "$work/wanted" "$work/store" --fit none --max-size "${SIZE:-512}" --max-rejects 5% --json >"$work/report.json"
fi
pack info "$work/store" --json |
    python -c 'import json, sys; m = json.load(sys.stdin); print(m["rows"], "rows,", m["rejected"], "rejected, mean", m["mean"])'

# Verify and look at it; the sheet shows a wrong crop or label at once.
pack verify "$work/store"
pack show "$work/store" --count 48 --output "$work/sheet.png"

python "$here/train.py" "$work/store" --epochs "${EPOCHS:-2}"
