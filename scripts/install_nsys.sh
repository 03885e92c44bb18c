#!/usr/bin/env bash
# Installs a real nsys (Nsight Systems 2023.4.4) from Debian's own packages into one folder, on Debian or Ubuntu on
# x86_64. Installs nothing into the system, leaves its apt sources alone, and needs no root.
#
#   scripts/install_nsys.sh DIR                   DIR/bin/nsys: profile, export, stats (700 MB, under a minute)
#   scripts/install_nsys.sh DIR BUNDLE.tar.xz     also packs what profile and export need (40 MB, 2 minutes) for a
#                                                 machine without network; there: tar xf BUNDLE.tar.xz -C /tmp
#
# The packages come from the Debian mirror that the system itself uses; NSYS_SYNC_DEBIAN_MIRROR=URL names another one
# (needed on Ubuntu).
set -euo pipefail

fail() { echo "install_nsys.sh: error: $*" >&2; exit 1; }

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || fail "usage: install_nsys.sh DIR [BUNDLE.tar.xz]"
case $1 in /*) dir=${1%/} ;; *) dir=$PWD/${1%/} ;; esac
case $dir in *[[:space:]]*) fail "nsys does not run from a folder with a space in its path: $dir" ;; esac
bundle=${2:-}
mirror=${NSYS_SYNC_DEBIAN_MIRROR:-$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2> /dev/null ||
  true)}
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" && /debian/ {for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; exit}}' \
  /etc/apt/sources.list 2> /dev/null || true)
system_libraries="libssh.so.4 libpfm.so.4 libgssapi_krb5.so.2 libk5crypto.so.3 libkrb5.so.3 libkrb5support.so.0
  libcom_err.so.2 libkeyutils.so.1 libcrypto.so.3 libsqlite3.so.0"
library_packages="libssh-4 libpfm4 libgssapi-krb5-2 libk5crypto3 libkrb5-3 libkrb5support0 libcom-err2 libkeyutils1
  libssl3 libsqlite3-0 libelf1"

work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

make_work() { work=$(mktemp -d "$dir.XXXXXX" 2> /dev/null) || fail "cannot write beside $dir"; }

why() { grep -m1 '^[EW]:' "$work/log" || tail -n1 "$work/log"; }

works() { "$1/bin/nsys" --version && "$1/host-linux-x64/QdstrmImporter" --version; } > /dev/null 2>&1

install() {
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "Debian has nsys for Linux x86_64 only, this is $(uname -sm)"
  [ -n "$mirror" ] || fail "no Debian mirror known here: set NSYS_SYNC_DEBIAN_MIRROR to the URL of one"
  local program
  for program in apt-get dpkg-deb; do
    command -v $program > /dev/null || fail "$program not found: this script needs Debian or Ubuntu"
  done
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e $key ] || fail "$key is missing: apt-get install debian-archive-keyring"
  if [ -e "$dir" ]; then
    rmdir "$dir" 2> /dev/null || fail "$dir exists and is no working nsys: remove it, or name another folder"
  fi
  mkdir -p "$(dirname "$dir")" 2> /dev/null || fail "cannot make $(dirname "$dir")"
  make_work

  # An apt of its own: lists, cache and sources lie in the work folder, and nothing is installed into the system.
  mkdir -p "$work"/{lists,cache/archives}/partial "$work/debs"
  # nsys from Debian 13; the libraries from Debian 12, whose older glibc also suits older systems.
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nArchitectures: amd64\nSigned-By: %s\n\n' \
    "$mirror" trixie non-free $key "$mirror" bookworm main $key > "$work/debian.sources"
  : > "$work/status"
  local apt=(apt-get -q -o APT::Architecture=amd64 -o APT::Sandbox::User= -o Acquire::Languages=none
    -o Dir::Etc::sourcelist="$work/debian.sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
    -o Acquire::Retries=3 -o Acquire::http::Timeout=60 -o APT::Update::Error-Mode=any)
  "${apt[@]}" update > "$work/log" 2>&1 || fail "no package lists from $mirror: $(why)"
  # shellcheck disable=SC2086 # a list of packages
  (cd "$work/debs" && "${apt[@]}" download nsight-systems nsight-systems-target $library_packages) > "$work/log" 2>&1 ||
    fail "cannot download nsys from $mirror: $(why)"
  local deb
  for deb in "$work"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/root" || fail "cannot unpack $(basename "$deb"): is the disk full?"
    rm "$deb"
  done

  # nsys looks for its importer beside the folder that it really runs from, so both lie together, and the libraries
  # that they take from the system lie beside them: a slim container lacks these.
  local made=$work/made usr=$work/root/usr/lib
  mkdir -p "$made/bin"
  mv "$usr/x86_64-linux-gnu/nsight-systems/target-linux-x64" "$usr/nsight-systems/host-linux-x64" "$made/"
  ln -s ../target-linux-x64/nsys "$made/bin/nsys"
  cp "$made"/target-linux-x64/python/lib/*.py "$made/host-linux-x64/python/lib/"
  local library found folder
  for library in $system_libraries libelf.so.1; do
    folder=host-linux-x64
    [ "$library" != libelf.so.1 ] || folder=target-linux-x64
    found=$(find "$work/root" -path "*/x86_64-linux-gnu/$library" -print -quit)
    [ -n "$found" ] || fail "Debian's packages lack $library"
    rm -f "$made/$folder/$library"
    cp -L "$found" "$made/$folder/$library"
  done
  works "$made" || fail "the nsys from Debian's packages does not run here:" \
    "$({ "$made/bin/nsys" --version && "$made/host-linux-x64/QdstrmImporter" --version; } 2>&1 | tail -n1)"
  mv "$made" "$dir"
  rm -rf "$work/root"
}

pack() {
  local slim=$work/nsys-slim file needed
  mkdir -p "$slim/bin" "$slim/host-linux-x64"
  ln -s ../target-linux-x64/nsys "$slim/bin/nsys"
  cp -a "$dir/target-linux-x64" "$slim/"
  (cd "$slim/target-linux-x64" && rm -rf libcupti.so.1[01].* CollectX vulkan-layers reports rules nvgpucs \
    libnvperf_grfx_host.so libToolsInjection{OpenMPI,MPICH,OpenSHMEM,UCP,CuDNN,CuBLAS}* \
    libToolsInjectionPython{GilTracing,NvtxAnnotations}*)
  cd "$dir/host-linux-x64"
  cp -a python sqlite3 nvlog.config.template "$slim/host-linux-x64/"
  # The two programs, the library that exports, and whatever they need of what lies beside them.
  needed=$(
    for file in QdstrmImporter ResolveSymbols libexporter.so; do LD_LIBRARY_PATH=$PWD ldd "$file"; done |
      awk -v here="$PWD/" 'index($3, here) == 1 {print substr($3, length(here) + 1)}' | sed 's|^\./||'
    printf '%s\n' QdstrmImporter ResolveSymbols libexporter.so libparquet.so.500 libarrow.so.500
    tr -s ' ' '\n' <<< "$system_libraries"
  )
  sort -u <<< "$needed" | xargs -I{} cp -aL {} "$slim/host-linux-x64/"
  cd - > /dev/null
  tar cf - -C "$work" nsys-slim | xz -T0 -6 > "$work/bundle"
  chmod 644 "$work/bundle"
  mv "$work/bundle" "$bundle" 2> /dev/null || fail "cannot write $bundle"
  echo "$bundle: $(du -h "$bundle" | cut -f1). Where it is to be used:"
  echo "tar xf $(basename "$bundle") -C /tmp && export NSYS_SYNC_NSYS=/tmp/nsys-slim/bin/nsys"
}

works "$dir" || install
"$dir/bin/nsys" --version
if [ -n "$bundle" ]; then
  [ -n "$work" ] || make_work
  pack
fi
echo "export NSYS_SYNC_NSYS=$dir/bin/nsys"
