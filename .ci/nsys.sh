#!/usr/bin/env bash
# Unpacks a real Nsight Systems (Debian's non-free 2023.4) into a cache folder, for the tests marked `nsys`.
#
# usage: .ci/nsys.sh [FOLDER]          default FOLDER: ${XDG_CACHE_HOME:-~/.cache}/diagnose-test-nsys
#
# Nothing is installed and apt's own configuration and lists are left alone: packages are downloaded with a private
# sources folder and unpacked with `dpkg -x`. On success the last line of stdout is the path of the nsys program.
# Where it cannot be done (no network, not Debian, no apt) it says so in one line and exits 0: tests then skip.
set -euo pipefail

folder="${1:-${XDG_CACHE_HOME:-$HOME/.cache}/diagnose-test-nsys}"
nsys="$folder/root/usr/lib/nsight-systems/bin/nsys"

skip() {
    echo "nsys is not available for tests: $1"
    exit 0
}

# The last nvtx whose ranges this nsys records, for captures with ranges; without it captures have none.
nvtx() {
    local python="${PYTHON:-python3}"
    [ -d "$folder/python/nvtx" ] || timeout 120 "$python" -m pip install -q --no-deps --target "$folder/python" \
        nvtx==0.2.11 >/dev/null 2>&1 || true
}

works() {
    [ -x "$nsys" ] && timeout 60 "$nsys" --version >/dev/null 2>&1
}

if works; then
    nvtx
    echo "$nsys"
    exit 0
fi

[ "$(uname -m)" = x86_64 ] || skip "the packages are for x86_64 only"
for tool in apt-get dpkg timeout; do
    command -v "$tool" >/dev/null || skip "$tool is missing"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] || skip "Debian's archive keyring is missing ($keyring)"

# The mirror this system already uses.
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/*.sources \
    /etc/apt/sources.list.d/*.list 2>/dev/null | grep -v snapshot | head -1 | tr -d ' ' || true)
[ -n "$mirror" ] || skip "apt's sources name no Debian mirror"

work=$(mktemp -d "${TMPDIR:-/tmp}/diagnose-nsys.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial,debs,root}
cat >"$work/parts/nsys.sources" <<SOURCES
Types: deb
URIs: $mirror
Suites: bookworm trixie
Components: main contrib non-free
Signed-By: $keyring
SOURCES

# The unprivileged user that apt downloads as cannot enter a private temporary folder; stay as we are instead.
apt=(timeout 300 apt-get -qq
    -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root
    -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
"${apt[@]}" update >"$work/log" 2>&1 || skip "apt-get update failed: $(tail -1 "$work/log")"
(cd "$work/debs" && "${apt[@]}" download nsight-systems/trixie nsight-systems-target/trixie libssh-4/bookworm) \
    >>"$work/log" 2>&1 || skip "download failed: $(tail -1 "$work/log")"
for deb in "$work"/debs/*.deb; do
    dpkg -x "$deb" "$work/root" || skip "cannot unpack ${deb##*/}"
done

# The host tree looks for its importer beside the target tree, and for python modules that only the target has.
lib="$work/root/usr/lib"
multiarch="$lib/x86_64-linux-gnu/nsight-systems"
ln -sfn ../../nsight-systems/host-linux-x64 "$multiarch/host-linux-x64"
for module in "$multiarch"/target-linux-x64/python/lib/*.py; do
    ln -sf "../../../../x86_64-linux-gnu/nsight-systems/target-linux-x64/python/lib/${module##*/}" \
        "$lib/nsight-systems/host-linux-x64/python/lib/"
done

mkdir -p "$folder"
rm -rf "${folder:?}/root"
mv "$work/root" "$folder/root"
works || skip "the unpacked nsys does not run here (it also needs libpfm4 and libgssapi-krb5-2)"
nvtx
echo "$nsys"
