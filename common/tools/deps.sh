#!/bin/sh
# Installs the packages that the suite needs from the system's package manager. Downloads nothing else.
set -eu
packages="gcc libc6-dev make libopenmpi-dev openmpi-bin libopenblas-openmp-dev libcjson-dev libcmocka-dev"

if ! command -v apt-get > /dev/null; then
    echo "No apt here. Install a C compiler, make, and these:"
    echo "  Homebrew: brew install gcc make open-mpi openblas cjson cmocka"
    echo "  elsewhere: Open MPI, OpenBLAS, cJSON and cmocka, with their headers"
    exit 1
fi

wanted=""
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2> /dev/null | grep -q "ok installed" || wanted="$wanted $p"
done
if [ -z "$wanted" ]; then
    echo "deps: everything is there"
    exit 0
fi

sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
        echo "Not root, and no sudo. Ask someone who is root to run:"
        echo "  apt-get install$wanted"
        exit 1
    fi
    sudo="sudo"
fi
echo "deps: installing$wanted"
$sudo apt-get update -q
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $wanted
