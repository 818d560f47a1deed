#!/bin/sh
# Compiles and links five-line programs to see what this machine has, says so, and writes make variables to $1.
# Reads CC, MPICC and BLAS (auto, 1: must be there, 0: do not use).
set -u
out=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"

# try COMPILER SOURCE FLAGS...: does it link?
try() {
    compiler=$1
    printf '%s\n' "$2" > "$work/probe.c"
    shift 2
    $compiler "$work/probe.c" -o "$work/probe" "$@" > "$work/log" 2>&1
}

missing() {
    echo "found: no $1. $2" >&2
    echo "found: 'make deps' installs what the suite needs" >&2
    exit 1
}

: > "$work/vars"
if ! try "$MPICC" '#include <mpi.h>
int main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }'; then
    missing MPI "Install Open MPI (Debian: libopenmpi-dev openmpi-bin; Homebrew: open-mpi), or set MPI_HOME."
fi
echo "found: MPI ($(command -v $MPICC))"

if ! try "$CC" '#include <cjson/cJSON.h>
int main(void) { return cJSON_CreateObject() == 0; }' -lcjson; then
    missing cJSON "Install it (Debian: libcjson-dev; Homebrew: cjson)."
fi

if try "$CC" '#include <omp.h>
int main(void) { return omp_get_max_threads() == 0; }' -fopenmp; then
    echo "OPENMP := -fopenmp" >> "$work/vars"
    echo "found: OpenMP"
else
    echo "found: no OpenMP; kernels run on one thread"
fi

blas='#include <cblas.h>
int main(void) { openblas_set_num_threads(1); return openblas_get_corename() == 0; }'
if [ "$BLAS" = 0 ]; then
    echo "found: BLAS switched off; matrix products are three plain loops"
elif try "$CC" "$blas" -lopenblas; then
    printf 'HAVE_BLAS := 1\nBLAS_LIBS := -lopenblas\n' >> "$work/vars"
    echo "found: OpenBLAS"
elif [ "$BLAS" = 1 ]; then
    missing OpenBLAS "Install it (Debian: libopenblas-openmp-dev; Homebrew: openblas)."
else
    echo "found: no OpenBLAS (Debian: libopenblas-openmp-dev): matrix products are three plain loops, far slower"
fi
mv "$work/vars" "$out"
